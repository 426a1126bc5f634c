# Owns `LaneSender` and `LaneReceiver`: the two ends of the connection between two members on which copies of buckets
# get what their primaries have, as Python sees them. One connection serves one direction.
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from pywan._core.c_base cimport *
from pywan._core.base.limit cimport MemoryLimit
from pywan._core.c_copies cimport WAN_LANE_RESTS
from pywan._core.c_lane cimport WAN_LANE_NAME_BYTES_MAX, WAN_LANE_REGIONS_MAX, WAN_PROMISE_KEPT_US
from pywan._core.copies.lane_news cimport (
    NEWS_IMAGE, NEWS_REFUSED, NEWS_SLOW, News)
from pywan._core.copies.lane_receiver cimport LaneReceiverSession, Promise
from pywan._core.copies.lane_sender cimport LaneSenderSession
from pywan._core.region.region cimport RegionCore
from pywan._core.region.tail cimport LaneState


cdef class LaneSender(LaneState):
    """Sends the changes and images of buckets to one other member. `number` is the lane's number in the tails; `about`
    names the lane in errors, and `other` the member. A thread runs it over one connection after the
    other. `member_timeout_ms`: see `configure`."""
    cdef readonly LaneSenderSession session
    cdef readonly str about
    cdef News told
    cdef dict regions                   # number -> (name, RegionCore or None). A number means one region for ever.

    def __cinit__(self, uint32_t number, str about, uint32_t member_timeout_ms, str other=""):
        cdef bytes name = other.encode("utf-8", "replace")[:sizeof(self.state.other) - 1]
        memcpy(self.state.other, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        self.told, self.about, self.regions = News(), about, {}
        self.session = LaneSenderSession(number, self, self.told)
        self.configure(member_timeout_ms)

    def configure(self, uint32_t member_timeout_ms):
        """Sets how long a question may stay without an answer before there is news of it. If no other one is answered
        meanwhile, the connection is given up."""
        wan_set(&self.session.silence_us, <uint64_t>member_timeout_ms * 1000)

    def add_region(self, uint32_t number, str name, RegionCore core not None):
        """Sends what the tail of a region has for this lane. `number` names the region on the lane, for ever."""
        if number >= WAN_LANE_REGIONS_MAX:
            raise ValueError(f"lane to {self.about}: region number {number}; there are at most {WAN_LANE_REGIONS_MAX}")
        known = self.regions.get(number)
        if known is not None and known[0] != name:
            raise ValueError(f"lane to {self.about}: number {number} is that of {known[0]!r}, and cannot name {name!r}")
        if not 0 < len(name.encode()) <= WAN_LANE_NAME_BYTES_MAX:
            raise ValueError(f"lane to {self.about}: the name {name!r} is empty, or too long for a lane")
        if known is not None and known[1] is not None:
            self.end_region(number)
        self.regions[number] = (name, core)
        self.session.add_region(number, name.encode(), &core.state.region)

    def remove_region(self, str name):
        """Sends nothing of this region any more. When this returns, the lane does not use its tail."""
        for number, (known, core) in list(self.regions.items()):
            if known == name and core is not None:
                self.end_region(number)
                self.regions[number] = (name, None)

    cdef void end_region(self, uint32_t number) noexcept:
        with nogil:
            self.session.remove_region(number)

    def run_over_socket(self, sock):
        """Sends over a connected socket until it breaks, or until `stop`. Returns "stopped", or why it ended. The GIL
        is free meanwhile. What was not acknowledged is sent again on the next connection."""
        return self.session.run(sock)

    def stop(self):
        """Makes `run_over_socket` return soon, also a later one."""
        self.session.stop()

    @property
    def promised_until_us(self):
        """Until when the other member has promised to adopt no later epoch without saying so."""
        return wan_read(&self.state.promised_until_us)

    @property
    def is_connected(self):
        return bool(self.state.is_connected)

    @property
    def rests(self):
        """Whether nothing is on its way. Then a thread that waits for its change runs the lane itself."""
        return wan_flag_read(<const int *>&self.state.asleep) == <int>WAN_LANE_RESTS

    @property
    def news_file(self):
        """An eventfd: readable while there is news."""
        return self.told.file

    def news(self):
        """What happened since the last call. ("refused", region, bucket, epoch): the copy knows this later epoch.
        ("learned", region, bucket, transfer): the image is whole and acknowledged. ("slow", since_us): a question has
        waited for an answer since then."""
        found = []
        for kind, region, bucket, value in self.told.take():
            if kind == NEWS_SLOW:
                found.append(("slow", value))
            else:
                found.append(("refused" if kind == NEWS_REFUSED else "learned", self.regions[region][0], bucket, value))
        return found


cdef class LaneReceiver:
    """Takes what one other member sends of the buckets whose copies are here. `find_region(name)` returns a RegionCore,
    or None. `member`: the number of the other member's incarnation; 0: it is not known, and may lead any bucket.
    `memory`: the limit of this member, whose state each answer tells. None: it has none."""
    cdef object find_region
    cdef readonly Promise promise
    cdef News told
    cdef list sessions                  # Those that run. An old connection may still be there when a new one comes.
    cdef dict names                     # The name of each region by number, as told last.
    cdef bint is_stopped
    cdef uint32_t member_timeout_ms, member
    cdef uint64_t ahead_ms              # Of sessions that have ended.
    cdef MemoryLimit memory

    def __cinit__(self, find_region, uint32_t member_timeout_ms, uint32_t member=0, MemoryLimit memory=None):
        self.member_timeout_ms, self.member, self.memory = member_timeout_ms, member, memory
        self.find_region, self.promise, self.told, self.sessions, self.names = find_region, Promise(), News(), [], {}

    def configure(self, uint32_t member_timeout_ms):
        """Sets after how long without a word a connection is given up, also one that is open."""
        cdef LaneReceiverSession session
        self.member_timeout_ms = member_timeout_ms
        for session in list(self.sessions):
            wan_set(&session.silence_us, <uint64_t>member_timeout_ms * 1000)

    def open_session(self):
        """The session of a new connection."""
        cdef LaneReceiverSession session = LaneReceiverSession(self.find_region, self.promise, self.told, self.memory)
        wan_set(&session.silence_us, <uint64_t>self.member_timeout_ms * 1000)
        session.member = self.member
        session.names = self.names
        self.sessions.append(session)
        return session

    def run_over_socket(self, sock):
        """Takes what comes over a connected socket until it closes or breaks, or until `stop`. Returns "stopped",
        "closed", or why it ended. The GIL is free meanwhile."""
        if self.is_stopped:
            return "stopped"
        session = self.open_session()
        if self.is_stopped:
            session.stop()
        try:
            return session.run(sock)
        finally:
            self.sessions.remove(session)
            self.ahead_ms = max(self.ahead_ms, wan_read(&(<LaneReceiverSession>session).ahead_ms))

    def stop(self):
        """Ends all connections, also later ones."""
        self.is_stopped = True
        for session in list(self.sessions):
            session.stop()

    def take_ahead_ms(self):
        """By how many milliseconds stamps of changes that came since the last call were ahead of the time here, at
        most. 0: none was further ahead than this member's clock follows."""
        cdef LaneReceiverSession session
        cdef uint64_t found = self.ahead_ms
        self.ahead_ms = 0
        for session in list(self.sessions):
            found = max(found, wan_read(&session.ahead_ms))
            wan_set(&session.ahead_ms, 0)
        return found

    def deny(self, str region, uint32_t bucket, uint64_t epoch):
        """Tells the other member that this one has adopted a later epoch of a bucket. No later promise is given before
        that is said. So `promise.left_us()`, asked after this, bounds what the other one may still read."""
        cdef RegionCore core
        cdef LaneReceiverSession session
        cdef uint64_t life = 0
        found = self.find_region(region)
        if found is not None:
            core = <RegionCore?>found
            if core.state.region.tail != NULL and bucket < core.state.region.tail.bucket_count:
                life = wan_read(&core.state.region.tail.buckets[bucket].life)
        for session in list(self.sessions):
            for number, name in list(session.names.items()):
                if name == region and not session.deny(number, bucket, life, epoch):
                    session.stop()      # Without memory to say it, nothing more is promised.

    @property
    def news_file(self):
        """An eventfd: readable while there is news."""
        return self.told.file

    def news(self):
        """What happened since the last call. ("image", region, bucket, transfer): the image of a learner is whole.
        ("buckets", region, ours, theirs): the other member divides a region otherwise, so nothing of it is taken."""
        return [("image" if kind == NEWS_IMAGE else "buckets", self.names.get(region), bucket, value)
                for kind, region, bucket, value in self.told.take()]


PROMISE_KEPT_US = WAN_PROMISE_KEPT_US
