# Owns how long a region remembers destroyed keys.
from libc.stdint cimport uint64_t
from libc.string cimport memset
from pywan._core.c_base cimport *
from pywan._core.c_region cimport *
from pywan._core.base.clock cimport Bell
from pywan._core.log.committer cimport committer_given, committer_has_written
from pywan._core.region.region_state cimport region_log, tombstone_counts
from pywan._core.region.region_scans cimport RegionScans
from pywan._core.region.region_walk cimport (
    region_newest_to_expire, region_raise_mark, region_sample_stamps, region_tombstones)
from pywan._core.base.status cimport raise_for


cdef class RegionTombstones(RegionScans):
    """The calls with which a region's member keeps or forgets tombstones."""

    def expire_tombstones(self, uint64_t before_ms, uint64_t below=0xffffffffffffffff):
        """Drops tombstones with stamps below `below`. A tombstone that still has its key is dropped only if the
        tombstone was made before `before_ms`. Returns (dropped, left). A dropped tombstone leaves no trace, so
        `keep_tombstones` first notes in the log that tombstones may be gone."""
        cdef uint64_t dropped = 0, left = 0
        cdef wan_shard *shard
        with nogil:
            for n in range(self.state.region.table.shard_count):
                shard = &self.state.region.table.shards[n]
                wan_lock_take(&shard.lock)
                if shard.tombstones or shard.shrunk != NULL:
                    dropped += wan_table_expire(shard, before_ms, below)
                    left += shard.tombstones + wan_shard_shrunk_count(shard)
                wan_lock_release(&shard.lock)
        return dropped, left

    def watch_tombstones(self, uint64_t limit, Bell bell):
        """From now on the bell rings when tombstones take more than `limit` bytes. If they do already, the bell rings
        when the tombstones have grown by a sixteenth of the limit. Returns whether they do."""
        cdef tombstone_counts found
        with nogil:
            region_tombstones(&self.state.region.table, &found)
        wan_set(<uint64_t *>&self.state.region.tombstone_room,
                limit - found.bytes if found.bytes <= limit else limit // 16)
        if bell is not self.bell:
            self.bell = bell
            self.state.region.bell = &bell.word
        return found.bytes > limit

    def keep_tombstones(self, uint64_t below, uint64_t before_ms, uint64_t limit):
        """Drops the tombstones that no event needs any more: no event with a stamp below `below` can come. If the rest
        takes more than `limit` bytes, these tombstones shrink to a hash and a stamp. If the shrunk tombstones take too
        much as well, the older half is forgotten, and a mark keeps the highest forgotten stamp. True: call the method
        again soon, because tombstones can be dropped only when the mark is on the disk."""
        cdef tombstone_counts found
        cdef wan_status status = WAN_OK
        self.drop_needless(below, before_ms)
        if below > wan_read(&self.state.region.mark):
            # No older event can come from the sites that we wait for. `let_go` is the mark for all other sites.
            wan_set(&self.state.region.mark, 0)
        with nogil:
            region_tombstones(&self.state.region.table, &found)
            if found.bytes > limit and found.whole:
                for n in range(self.state.region.table.shard_count):
                    wan_lock_take(&self.state.region.table.shards[n].lock)
                    if status == WAN_OK:
                        status = wan_table_shrink(&self.state.region.table.shards[n])
                    wan_lock_release(&self.state.region.table.shards[n].lock)
                region_tombstones(&self.state.region.table, &found)
        raise_for(status, f"region {self.state.name!r}: tombstones")
        if found.bytes > limit and not self.forgetting:
            self.begin_forgetting(found.bytes, limit)
        if self.forgetting and self.is_on_disk(self.forgetting_given):
            self.expire_tombstones(0, self.forgetting + 1)
            self.let_go, self.forgetting = max(self.let_go, self.forgetting), 0
        if self.bell is not None:
            self.watch_tombstones(limit, self.bell)
        return self.forgetting != 0

    cdef int drop_needless(self, uint64_t below, uint64_t before_ms) except -1:
        """Drops the tombstones that no event needs, once the disk knows up to which stamp tombstones may be gone."""
        cdef uint64_t newest
        cdef wan_status status = WAN_OK
        if self.letting_go and self.is_on_disk(self.letting_go_given):
            self.let_go, self.letting_go = max(self.let_go, self.letting_go), 0
        with nogil:
            newest = region_newest_to_expire(&self.state.region.table, before_ms, below)
        if newest == 0:
            return 0
        if newest > self.state.region.let_go and not self.letting_go:
            with nogil:
                status = region_raise_mark(&self.state.region, newest, WAN_LOGGED_LET_GO)
            if status == WAN_OK and self.state.region.log == NULL:
                self.let_go = newest
            elif status == WAN_OK:
                self.letting_go, self.letting_go_given = newest, self.given_now()
        if self.let_go:
            self.expire_tombstones(before_ms, min(below, self.let_go + 1))
        return 0

    cdef int begin_forgetting(self, uint64_t held, uint64_t limit) except -1:
        """Chooses the stamp up to which tombstones are forgotten, and writes the mark before any of these tombstones is
        dropped."""
        cdef wan_buffer stamps
        cdef wan_status status
        cdef uint64_t mark
        memset(&stamps, 0, sizeof(stamps))
        with nogil:
            status = region_sample_stamps(&self.state.region.table, &stamps)
        ordered = sorted([(<uint64_t *>stamps.bytes)[n] for n in range(stamps.count)])
        wan_buffer_close(&stamps)
        if status != WAN_OK or not ordered:
            raise_for(status, f"region {self.state.name!r}: tombstones")
            return 0
        mark = ordered[min(len(ordered) - 1, len(ordered) - int(len(ordered) * (limit / 2) / held))]
        mark = max(mark, wan_read(&self.state.region.mark))
        with nogil:
            status = region_raise_mark(&self.state.region, mark, 0)
        if status != WAN_OK:
            return 0                        # The log has no room now. The next look tries again.
        self.forgetting, self.forgetting_given = mark, self.given_now()
        return 0

    cdef int lower_marks(self, uint64_t stamp, uint64_t let_go) except -1:
        """For a repair of the clock: no stamp above `stamp` is left. Tombstones up to `let_go` may be dropped once the
        records that are pending now are on the disk."""
        self.forgetting = min(self.forgetting, stamp)
        self.let_go, self.letting_go, self.letting_go_given = 0, let_go, self.given_now()
        return 0

    cdef uint64_t given_now(self):
        """How many records were given to the log so far. When this number of records is on the disk, all records that
        are pending now are on the disk."""
        cdef region_log *log = self.state.region.log
        cdef uint64_t given = 0
        if log != NULL:
            with nogil:
                given = committer_given(&log.committer)
        return given

    cdef bint is_on_disk(self, uint64_t given):
        """Whether so many of the records given to the log are on the disk. True if the region has no log."""
        cdef region_log *log = self.state.region.log
        cdef bint is_written = True
        if log != NULL:
            with nogil:
                is_written = committer_has_written(&log.committer, given)
        return is_written

    @property
    def tombstone_state(self):
        """The region's memory of destroyed keys: the numbers of whole and of shrunk tombstones, their bytes, the stamp
        up to which further tombstones were forgotten (0: none were), and the stamp up to which some may be gone for any
        reason."""
        cdef tombstone_counts found
        with nogil:
            region_tombstones(&self.state.region.table, &found)
        return {"tombstones": found.whole, "shrunk_tombstones": found.shrunk, "tombstone_bytes": found.bytes,
                "forgotten_through": wan_read(&self.state.region.mark),
                "let_go_through": wan_read(&self.state.region.let_go)}
