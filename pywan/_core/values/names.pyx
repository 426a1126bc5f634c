# Owns the numbers of region names in this process. Records have the number; each connection announces the names.
from libc.stdint cimport uint16_t
from pywan._core.c_record cimport *
from pywan._core.base.status cimport raise_for


cdef dict region_numbers = {}


cdef int region_number(str name, int wanted=0) except -1:
    """The number of a region's name. `wanted`: the number that the name gets if it has none and this one is free. It is
    the number that a log used, so that the log's records can be sent without a change."""
    number = region_numbers.get(name)
    if number is None:
        data = name.encode()
        if len(region_numbers) >= WAN_REGION_NAMES - 1 or len(data) > WAN_REGION_NAME_BYTES_MAX:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"region {name[:80]!r}: at most 65535 regions, with names of at most 1024 bytes")
        number = wanted if wanted else len(region_numbers) + 1
        while wan_region_names[number].text != NULL:
            number = number % (WAN_REGION_NAMES - 1) + 1
        raise_for(wan_region_name_give(<uint16_t>number, <const char *>data, <uint16_t>len(data)),
                  f"region {name[:80]!r}")
        region_numbers[name] = number
    return number


cdef int known_region_number(str name) except -1:
    """The number of a region's name. 0: it has none, and gets none. A name that somebody asks about over a network may
    be of no region, and there are few numbers."""
    return region_numbers.get(name, 0)


cpdef region_name(int number):
    """The name that has this number in this process. None: no name has."""
    if not 0 < number < WAN_REGION_NAMES or wan_region_names[number].text == NULL:
        return None
    return wan_region_names[number].text[:wan_region_names[number].length].decode()
