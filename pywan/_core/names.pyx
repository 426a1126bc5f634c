# Owns the numbers of region names: written into records, announced by name on every connection.
from libc.stdint cimport uint16_t
from pywan._core.c_record cimport *
from pywan._core.status cimport raise_for


cdef dict region_numbers = {}


cdef int region_number(str name) except -1:
    number = region_numbers.get(name)
    if number is None:
        number = len(region_numbers) + 1
        data = name.encode()
        if number >= WAN_REGION_NAMES or len(data) > WAN_REGION_NAME_BYTES_MAX:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"region {name[:80]!r}: at most 65535 regions, with names of at most 1024 bytes")
        raise_for(wan_region_name_give(<uint16_t>number, <const char *>data, <uint16_t>len(data)), f"region {name[:80]!r}")
        region_numbers[name] = number
    return number


def region_name(int number):
    """The name behind a region number of this process."""
    if not 0 < number < WAN_REGION_NAMES or wan_region_names[number].text == NULL:
        return None
    return wan_region_names[number].text[:wan_region_names[number].length].decode()
