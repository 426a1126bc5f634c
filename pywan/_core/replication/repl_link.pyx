# Owns `ReplSender` and `ReplReceiver`, the two ends of a replication link as Python sees them: the connection on which
# replicas of buckets get the changes of their primaries. One connection serves one direction.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.c_replication cimport (
    WAN_READ_LEASE_KEPT_US, WAN_REPL_LINK_RESTS, WAN_REPL_NAME_BYTES_MAX, WAN_REPL_REGIONS_MAX)
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.replication.repl_news cimport (
    NEWS_SNAPSHOT, NEWS_REFUSED, NEWS_SLOW, News)
from pywan._core.replication.repl_receiver cimport ReplReceiverSession, ReadLease
from pywan._core.replication.repl_sender cimport ReplSenderSession
from pywan._core.region.region cimport RegionCore
from pywan._core.region.changelog cimport ReplLinkState


cdef class ReplSender(ReplLinkState):
    """Sends the changes and snapshots of buckets to one other member. `number` is the replication link's number in the
    change logs; `about` names the replication link in errors, and `other` the member. A thread runs the link over one
    connection after the other. `member_timeout_ms`: see `configure`."""
    cdef readonly ReplSenderSession session
    cdef readonly str about
    cdef News told
    cdef dict regions                   # number -> (name, RegionCore or None). A number means the same region for ever.

    def __cinit__(self, uint32_t number, str about, uint32_t member_timeout_ms, str other=""):
        cdef bytes name = other.encode("utf-8", "replace")[:sizeof(self.state.other) - 1]
        memcpy(self.state.other, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        self.told, self.about, self.regions = News(), about, {}
        self.session = ReplSenderSession(number, self, self.told)
        self.configure(member_timeout_ms)

    def configure(self, uint32_t member_timeout_ms):
        """Sets how long a question may stay without an answer before news is sent about it. If no answer to any
        question arrives meanwhile, the connection is given up."""
        wan_set(&self.session.receive_timeout_us, <uint64_t>member_timeout_ms * 1000)

    def add_region(self, uint32_t number, str name, RegionCore core not None):
        """Sends the change log of a region to the other member. `number` names the region on the replication link, for
        ever."""
        if number >= WAN_REPL_REGIONS_MAX:
            raise ValueError(f"replication link to {self.about}: region number {number}; there are at most"
                             f" {WAN_REPL_REGIONS_MAX}")
        known = self.regions.get(number)
        if known is not None and known[0] != name:
            raise ValueError(f"replication link to {self.about}: number {number} is that of {known[0]!r}, and cannot"
                             f" name {name!r}")
        if not 0 < len(name.encode()) <= WAN_REPL_NAME_BYTES_MAX:
            raise ValueError(f"replication link to {self.about}: the name {name!r} is empty or too long")
        if known is not None and known[1] is not None:
            self.end_region(number)
        self.regions[number] = (name, core)
        self.session.add_region(number, name.encode(), &core.state.region)

    def remove_region(self, str name):
        """Stops sending a region. After the return the replication link does not use the region's change log."""
        for number, (known, core) in list(self.regions.items()):
            if known == name and core is not None:
                self.end_region(number)
                self.regions[number] = (name, None)

    cdef void end_region(self, uint32_t number) noexcept:
        with nogil:
            self.session.remove_region(number)

    def run_over_socket(self, sock):
        """Sends over a connected socket until the connection breaks, or until `stop`. Returns "stopped", or the reason
        of the end. The GIL is free meanwhile. Everything without an acknowledgement is sent again on the next
        connection."""
        return self.session.run(sock)

    def stop(self):
        """Makes `run_over_socket` return soon, also a later call."""
        self.session.stop()

    @property
    def read_lease_until_us(self):
        """The end of the read lease: until then the other member adopts no later epoch without saying so."""
        return wan_read(&self.state.read_lease_until_us)

    @property
    def is_connected(self):
        return bool(self.state.is_connected)

    @property
    def rests(self):
        """Whether no question is on its way. A thread that waits for its change then runs the replication link
        itself."""
        return wan_flag_read(<const int *>&self.state.asleep) == <int>WAN_REPL_LINK_RESTS

    @property
    def news_file(self):
        """An eventfd, readable while news is waiting."""
        return self.told.file

    def news(self):
        """Returns the news since the last call. ("refused", region, bucket, epoch): the replica knows this later epoch.
        ("learned", region, bucket, transfer): the snapshot is whole and acknowledged. ("slow", since_us): a question
        has waited for an answer since then."""
        found = []
        for kind, region, bucket, value in self.told.take():
            if kind == NEWS_SLOW:
                found.append(("slow", value))
            else:
                found.append(("refused" if kind == NEWS_REFUSED else "learned", self.regions[region][0], bucket, value))
        return found


cdef class ReplReceiver:
    """Receives the changes and snapshots that one other member sends to the replicas of this member.
    `find_region(name)` returns a RegionCore, or None. `member`: the number of the other member's incarnation; 0:
    unknown, and may lead any bucket. `memory`: the limit of this member; each answer carries its state. None: no
    limit."""
    cdef object find_region
    cdef readonly ReadLease read_lease
    cdef News told
    cdef list sessions                  # Running sessions. An old connection may still run when a new one begins.
    cdef dict names                     # The last received name of each region by number.
    cdef bint is_stopped
    cdef uint32_t member_timeout_ms, member
    cdef uint64_t ahead_ms              # Of ended sessions.
    cdef MemoryLimit memory

    def __cinit__(self, find_region, uint32_t member_timeout_ms, uint32_t member=0, MemoryLimit memory=None):
        self.member_timeout_ms, self.member, self.memory = member_timeout_ms, member, memory
        self.find_region, self.read_lease = find_region, ReadLease()
        self.told, self.sessions, self.names = News(), [], {}

    def configure(self, uint32_t member_timeout_ms):
        """Sets the time without a received frame after which a connection is given up, also for an open connection."""
        cdef ReplReceiverSession session
        self.member_timeout_ms = member_timeout_ms
        for session in list(self.sessions):
            wan_set(&session.receive_timeout_us, <uint64_t>member_timeout_ms * 1000)

    def open_session(self):
        """The session of a new connection."""
        cdef ReplReceiverSession session = ReplReceiverSession(self.find_region, self.read_lease, self.told,
                                                               self.memory)
        wan_set(&session.receive_timeout_us, <uint64_t>self.member_timeout_ms * 1000)
        session.member = self.member
        session.names = self.names
        self.sessions.append(session)
        return session

    def run_over_socket(self, sock):
        """Receives over a connected socket until the connection closes or breaks, or until `stop`. Returns "stopped",
        "closed", or the reason of the end. The GIL is free meanwhile."""
        if self.is_stopped:
            return "stopped"
        session = self.open_session()
        if self.is_stopped:
            session.stop()
        try:
            return session.run(sock)
        finally:
            self.sessions.remove(session)
            self.ahead_ms = max(self.ahead_ms, wan_read(&(<ReplReceiverSession>session).ahead_ms))

    def stop(self):
        """Ends all present and later connections."""
        self.is_stopped = True
        for session in list(self.sessions):
            session.stop()

    def take_ahead_ms(self):
        """Returns by how many milliseconds stamps of changes since the last call were ahead of the local time, at most.
        0: no stamp was further ahead than this member's clock follows."""
        cdef ReplReceiverSession session
        cdef uint64_t found = self.ahead_ms
        self.ahead_ms = 0
        for session in list(self.sessions):
            found = max(found, wan_read(&session.ahead_ms))
            wan_set(&session.ahead_ms, 0)
        return found

    def deny(self, str region, uint32_t bucket, uint64_t epoch):
        """Tells the other member that this member has adopted a later epoch of a bucket. The next read lease is given
        only after this message. So `read_lease.left_us()`, asked after the call, bounds the time in which the peer may
        still answer reads."""
        cdef RegionCore core
        cdef ReplReceiverSession session
        cdef uint64_t timeline = 0
        found = self.find_region(region)
        if found is not None:
            core = <RegionCore?>found
            if core.state.region.changelog != NULL and bucket < core.state.region.changelog.bucket_count:
                timeline = wan_read(&core.state.region.changelog.buckets[bucket].timeline)
        for session in list(self.sessions):
            for number, name in list(session.names.items()):
                if name == region and not session.deny(number, bucket, timeline, epoch):
                    session.stop()      # No memory for the message: no more read leases.

    @property
    def news_file(self):
        """An eventfd, readable while news is waiting."""
        return self.told.file

    def news(self):
        """Returns the news since the last call. ("snapshot", region, bucket, transfer): the snapshot of a learner is
        whole. ("buckets", region, ours, theirs): the peer divides a region into a different number of buckets, so no
        change of the region is applied."""
        return [("image" if kind == NEWS_SNAPSHOT else "buckets", self.names.get(region), bucket, value)
                for kind, region, bucket, value in self.told.take()]


READ_LEASE_KEPT_US = WAN_READ_LEASE_KEPT_US
