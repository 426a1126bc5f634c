# Owns the opening of a persistent region's log, the beginning and end of its committer, and the time when a closed
# region's entries are freed.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_log cimport *
from pywan._core.c_region cimport *
from pywan._core.log.committer cimport (
    WORK_NOW, committer_left, committer_once, committer_opened, committer_release_role, committer_run,
    committer_share, committer_state, committer_stop, committer_take_role, committer_write_now, level_of)
from pywan._core.log.disk_log cimport LogBudget, damage_list
from pywan._core.region.region_committer cimport region_committer_init
from pywan._core.region.region_recovery cimport (
    region_log_close, region_log_new, region_log_note_damaged, region_log_recover)
from pywan._core.region.region_state cimport region_log
from pywan._core.region.region_tombstones cimport RegionTombstones
from pywan._core.base.status cimport environment_of
from pywan._core.values.codec cimport decode


cdef class PersistentRegion(RegionTombstones):
    """A region that may have a log."""

    def open_log(self, directory, *, uint64_t log_id, synchronous=True, uint32_t flush_ms=10,
                 LogBudget log_budget=None, uint64_t log_known=0, bint salvage=False, environment=None, wait=None):
        """Makes the region persistent: recovers what the log in `directory` holds, and logs every change from now on.
        Call it before the region is used. `commit_loop` has to run in a thread of its own. `environment`: used instead
        of the operating system's files. `wait`: called instead of waiting for the committer, where the committer does
        not run in a thread. Returns what recovery found."""
        cdef const wan_env *env = environment_of(environment)
        cdef region_log *log = region_log_new(&self.state.region)
        cdef wan_log_reader reader
        cdef wan_damage damage
        cdef wan_status status
        cdef bytes path = str(directory).encode("utf-8", "surrogateescape")
        cdef const char *path_ = path
        region_committer_init(log, level_of(synchronous), flush_ms)
        memset(&reader, 0, sizeof(reader))
        reader.owner = log
        reader.part, reader.damaged = region_log_recover, region_log_note_damaged
        reader.salvage, reader.read_ahead = salvage, env == &wan_env_posix
        with nogil:
            status = wan_log_open(&log.committer.log, env, path_, WAN_LOG_REGION, log_id, 0, &reader, &damage,
                                  &log.cut_bytes)
            wan_clock_see(self.state.region.clock, log.highest if status == WAN_OK else 0)
        try:
            committer_opened(&log.committer, status, f"region {self.state.name!r}")
        except BaseException:
            region_log_close(log)
            raise
        committer_share(&log.committer, log_budget, log_known, False)
        self.state.keep_log(log, environment, log_budget, wait)
        self.let_go = self.state.region.let_go
        return {"records": log.recovered, "cut_bytes": log.cut_bytes, "entries": len(self),
                "damages": damage_list(&log.damages)}

    @property
    def persistent(self):
        return self.state.region.log != NULL

    def commit_loop(self):
        """Writes pending records until `stop_log` is called. It does not hold the GIL meanwhile."""
        if self.state.region.log != NULL:
            with nogil:
                committer_run(&self.state.region.log.committer)
            if self.releases_entries:
                self.free_entries()

    def commit_once(self):
        """Runs one round of the committer in the caller's thread, for logs without a `commit_loop`. False: the disk did
        not take the pending records, and `log_state` says why."""
        cdef wan_status status = WAN_OK
        if self.state.region.log != NULL:
            with nogil:
                status = committer_once(&self.state.region.log.committer, WORK_NOW)
        return status == WAN_OK

    def write_once(self):
        """Writes the pending records in the caller's thread, as a caller does that waits for a log which is synced
        later. False: the write is left to `commit_loop` or `commit_once`."""
        cdef wan_status status = WAN_EMPTY
        if self.state.region.log != NULL:
            with nogil:
                status = committer_write_now(&self.state.region.log.committer)
        return status == WAN_OK

    def stop_log(self):
        """Makes `commit_loop` return when everything is on the disk, or cannot get there."""
        if self.state.region.log != NULL:
            with nogil:
                committer_stop(&self.state.region.log.committer)

    def log_state(self):
        """Sizes of the log, and the reason why writing fails now (None: writing does not fail)."""
        self.state.check_process()
        return committer_state(&self.state.region.log.committer) if self.state.region.log != NULL else {}

    def unwritten(self, uint64_t limit=10):
        """(how many changes are not on the disk, up to `limit` of their keys). Waits for a round that is under way."""
        cdef region_log *log = self.state.region.log
        cdef uint64_t left
        cdef list keys = []
        if log == NULL:
            return 0, keys
        with nogil:
            committer_take_role(&log.committer)
            wan_lock_take(&log.lock)
        try:
            add_keys(keys, &log.records.taken, log.written, limit)
            add_keys(keys, &log.records.pending, 0, limit)
        finally:
            wan_lock_release(&log.lock)
            committer_release_role(&log.committer)
        with nogil:
            left = committer_left(&log.committer)
        return left, keys

    def release_entries(self):
        """Gives back the memory of a closed region's entries, because references to the region may live for a long time
        yet. If the region has a log, the memory is given back when `commit_loop` ends: until then the committer asks
        the table which records of the log are current."""
        if not self.state.region.closed:
            from pywan.errors import InternalError
            raise InternalError(f"region {self.state.name!r} is not closed; nothing was changed")
        # This call sets the flag and then looks whether `commit_loop` has ended; `commit_loop` ends and then looks at
        # the flag. So at least one of the two frees the entries.
        self.releases_entries = True
        if self.state.region.log == NULL or wan_flag_read(&self.state.region.log.committer.ended):
            self.free_entries()

    cdef int free_entries(self) except -1:
        """Frees all entries, shard by shard."""
        cdef wan_shard *shard
        cdef wan_shard_content content
        with nogil:
            for n in range(self.state.region.table.shard_count):
                shard = &self.state.region.table.shards[n]
                wan_lock_take(&shard.lock)
                content = wan_table_take_all(shard)
                wan_lock_release(&shard.lock)
                wan_table_free(content)
            wan_table_drop_spare(&self.state.region.table)
        return 0


cdef int add_keys(list keys, const wan_buffer *records, uint64_t at, uint64_t limit) except -1:
    """Adds the keys of the records from the byte `at` on that are not in the list, until it has `limit`."""
    cdef const wan_logged *record
    while at < records.used and <uint64_t>len(keys) < limit:
        record = <const wan_logged *>(records.bytes + at)
        at += wan_logged_length(record)
        if record.kinds & WAN_LOGGED_MARK:
            continue
        key = decode(record.key_form, wan_logged_key(record), record.key_length)
        if key not in keys:
            keys.append(key)
    return 0
