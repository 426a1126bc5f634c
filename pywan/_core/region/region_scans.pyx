# Owns the calls that go through many entries of a region, shard by shard or bucket by bucket.
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from cpython.bytes cimport PyBytes_AS_STRING
from pywan._core.c_base cimport *
from pywan._core.c_names cimport *
from pywan._core.c_record cimport *
from pywan._core.c_region cimport *
from pywan._core.values.codec cimport encode_key, encoded
from pywan._core.region.compiled_region cimport CompiledRegion
from pywan._core.region.region_changes cimport RegionChanges
from pywan._core.region.region_walk cimport pass_entry_locks, region_copy, region_packed
from pywan._core.base.status cimport raise_for
from pywan._core.values.tagged cimport show


cdef class RegionScans(RegionChanges):
    """The calls with which a region's member reads, compares, copies and drops many entries."""

    def scan_keys(self):
        """Gives every live key, shard by shard. A change that happens meanwhile may be seen or not. A key that is no
        object in this process is shown as Undecodable, and lookups accept the Undecodable."""
        if self.state.region.changelog != NULL:
            yield from self.state.route.scan_keys()
            return
        following = 0
        while following is not None:
            following, run = self.scan(following, 1)
            at = 0
            while at < len(run):
                length = run[at] | run[at + 1] << 8
                self.state.check_open()
                key = run[at + 32:at + 32 + length]
                yield show(run[at + 2], <const uint8_t *>PyBytes_AS_STRING(key), length)
                at += 32 + length

    @property
    def route(self):
        """The object that makes the calls about keys whose primary is another member. None: this member alone has the
        region."""
        return self.state.route

    def scan(self, uint64_t scan_position=0, uint64_t limit=10000):
        """(next position or None, entries): the live entries of one shard or more, packed to compare sites.

        Each entry is: u16 key length, u8 key form, u8 value form, u32 value length, u64 hash of the value, u64 stamp,
        u8 site, 7 zeros, key; little-endian.
        """
        cdef const wan_table *table = &self.state.region.table
        self.state.check_open()
        packed = region_packed(table, &scan_position, table.shard_count, limit, self.state.name)
        return None if scan_position >= table.shard_count else scan_position, packed

    def fix_stamps(self):
        """Returns when every local change with a stamp below the clock's `raise_low` is in the queues."""
        with nogil:
            pass_entry_locks(&self.state.region.table)

    def copy_into(self, RegionScans to not None, uint64_t scan_position=0):
        """Copies every entry from `scan_position` on with its version into a second region; tombstones and invalidated
        entries too. Returns None when all entries are in the second region. Otherwise that region's log had no room:
        repeat the call with the returned position when the log's disk has taken the pending records."""
        cdef wan_status status
        with nogil:
            status = region_copy(&self.state.region, &to.state.region, &scan_position)
        if status != WAN_OK and status != WAN_FULL:
            self.state.fail(status, f"replica into region {to.state.name!r}")
        return scan_position if status == WAN_FULL else None

    # Buckets

    @property
    def bucket_count(self):
        return self.state.region.table.bucket_count

    def bucket_of(self, key):
        """The number of the bucket of a key, whether the key is present or not."""
        cdef encoded encoded_key
        _key_holder = encode_key(key, &encoded_key)
        cdef uint64_t hash = wan_key_hash(encoded_key.data, encoded_key.length, encoded_key.form)
        return wan_table_bucket(&self.state.region.table, hash).number

    def bucket(self, uint32_t number):
        """A bucket's role, its shards, its entries, its tombstones (whole and shrunk), and their bytes."""
        cdef const wan_bucket *bucket = bucket_at(self.state, number)
        cdef wan_bucket_counts counts
        self.state.check_open()
        with nogil:
            counts = wan_table_bucket_count(&self.state.region.table, bucket)
        return {"number": bucket.number, "role": "primary" if bucket.role == WAN_BUCKET_PRIMARY else "",
                "shards": bucket.shard_count, "entries": counts.entries, "tombstones": counts.tombstones,
                "shrunk_tombstones": counts.shrunk, "bytes": counts.bytes}

    def bucket_digest(self, uint32_t number):
        """A digest of a bucket, equal for two regions that hold the same keys, versions and contents in the bucket;
        tombstones have no part in the digest."""
        cdef const wan_bucket *bucket = bucket_at(self.state, number)
        cdef uint64_t digest
        self.state.check_open()
        with nogil:
            digest = wan_table_bucket_digest(&self.state.region.table, bucket)
        return digest

    def scan_bucket(self, uint32_t number):
        """The live entries of a bucket, packed as `scan` packs them."""
        cdef const wan_bucket *bucket = bucket_at(self.state, number)
        cdef uint64_t scan_position = bucket.first_shard
        self.state.check_open()
        return region_packed(&self.state.region.table, &scan_position, bucket.first_shard + bucket.shard_count,
                             NO_LIMIT,
                             self.state.name)

    def copy_bucket(self, uint32_t number, RegionScans to not None):
        """Copies a bucket's entries into the same bucket of a second region with as many buckets. The second region
        must not be persistent: its log would not know of the entries."""
        cdef const wan_bucket *bucket = bucket_at(self.state, number)
        cdef wan_status status
        self.state.check_open()
        to.state.check_open()
        check_memory_only(to.state)
        if to is self:
            return
        with nogil:
            status = wan_table_bucket_copy(&self.state.region.table, bucket, &to.state.region.table)
        raise_for(status, f"replica of bucket {number} of region {self.state.name!r}")

    def drop_bucket(self, uint32_t number):
        """Takes everything out of a bucket, tombstones too, and returns how many there were. Nothing is sent. The
        region must not be persistent. The region may be closed: a member's work on its buckets goes on until the member
        knows of the end."""
        cdef const wan_bucket *bucket = bucket_at(self.state, number)
        cdef uint64_t dropped
        check_memory_only(self.state)
        with nogil:
            dropped = wan_table_bucket_drop(&self.state.region.table, bucket)
        return dropped


cdef wan_bucket *bucket_at(CompiledRegion self, uint32_t number) except NULL:
    """The bucket with this number. InternalError: no bucket has the number."""
    if number >= self.region.table.bucket_count:
        from pywan.errors import InternalError
        raise InternalError(f"region {self.name!r}: bucket {number} of {self.region.table.bucket_count}")
    return &self.region.table.buckets[number]


cdef int check_memory_only(CompiledRegion self) except -1:
    """Raises an error if the region is persistent."""
    if self.region.log != NULL:
        from pywan.errors import InternalError
        raise InternalError(f"region {self.name!r} is persistent, and its log would not know of it; nothing was"
                            " changed")
    return 0
