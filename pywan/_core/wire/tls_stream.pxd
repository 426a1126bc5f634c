# The interface of tls_stream.pyx.
from pywan._core.wire.byte_stream cimport ByteStream

cdef ByteStream stream_of(object sock)
