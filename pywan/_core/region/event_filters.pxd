# The interface of event_filters.pyx.
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from pywan._core.c_record cimport WAN_DESTROY, wan_record
from pywan._core.values.codec cimport encode, encoded
from pywan._core.values.queue_event cimport GatewayQueueEvent

cdef class EventFilters:
    # The methods of the user's filters, looked up once, in the order of the filters.
    cdef tuple before_enqueue, before_transmit, after_acknowledgement
    cdef object substitute          # The substitution filter's method, or None.
    cdef object withheld            # The answer about an event whose substitution filter fails: WITHHELD or None.


cdef inline bint is_sent(EventFilters self, GatewayQueueEvent event) except -1:
    """Asks before_transmit of one filter after the other, until one of them refuses."""
    cdef Py_ssize_t n
    for n in range(PyTuple_GET_SIZE(self.before_transmit)):
        method = <object>PyTuple_GET_ITEM(self.before_transmit, n)
        try:
            if not method(event):
                return False
        except BaseException as error:
            self.failed("before_transmit", method, event, error)
    return True


cdef inline int after_acknowledgement(EventFilters self, GatewayQueueEvent event) except -1:
    """Calls after_acknowledgement of all filters."""
    cdef Py_ssize_t n
    for n in range(PyTuple_GET_SIZE(self.after_acknowledgement)):
        method = <object>PyTuple_GET_ITEM(self.after_acknowledgement, n)
        try:
            method(event)
        except BaseException as error:
            self.failed("after_acknowledgement", method, event, error)
    return 0


cdef inline tuple substitute_for(EventFilters self, GatewayQueueEvent event):
    """Returns the (form, bytes) that the substitution filter gives. None: there is no filter for this event."""
    cdef encoded out
    if self.substitute is None or (<const wan_record *>PyBytes_AS_STRING(event.record)).operation == WAN_DESTROY:
        return None
    _holder = encode(self.substitute(event), &out)
    return out.form, PyBytes_FromStringAndSize(<const char *>out.data, out.length)


cdef inline object answer_about(EventFilters self, GatewayQueueEvent event):
    """Asks the substitution filter, then before_enqueue of one filter after the other, until one of them refuses.
    Returns None (enqueue the event), False (it is filtered), (form, bytes) of a value to send instead of its own, or
    WITHHELD (it must not leave, since the substitution filter failed)."""
    cdef object answer = None
    cdef Py_ssize_t n
    if self.substitute is not None:
        try:
            answer = substitute_for(self, event)
        except BaseException as error:
            self.failed("get_substitute_value", self.substitute, event, error)
            answer = self.withheld
    for n in range(PyTuple_GET_SIZE(self.before_enqueue)):
        method = <object>PyTuple_GET_ITEM(self.before_enqueue, n)
        try:
            if not method(event):
                return False
        except BaseException as error:
            self.failed("before_enqueue", method, event, error)
    return answer
