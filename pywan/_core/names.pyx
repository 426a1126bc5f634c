# Owns the numbers of region names: written into records, announced by name on every connection.
from libc.stdint cimport uint16_t
from pywan._core.c_record cimport *
from pywan._core.status cimport raise_for


cdef dict region_numbers = {}


cdef int region_number(str name, int wanted=0) except -1:
    """`wanted`: the number that it gets if it has none and that one is free: of a log, whose records then need not be changed to be sent."""
    number = region_numbers.get(name)
    if number is None:
        data = name.encode()
        if len(region_numbers) >= WAN_REGION_NAMES - 1 or len(data) > WAN_REGION_NAME_BYTES_MAX:
            from pywan.errors import ConfigurationError
            raise ConfigurationError(f"region {name[:80]!r}: at most 65535 regions, with names of at most 1024 bytes")
        number = wanted if wanted else len(region_numbers) + 1
        while wan_region_names[number].text != NULL:
            number = number % (WAN_REGION_NAMES - 1) + 1
        raise_for(wan_region_name_give(<uint16_t>number, <const char *>data, <uint16_t>len(data)), f"region {name[:80]!r}")
        region_numbers[name] = number
    return number


def region_name(int number):
    """The name behind a region number of this process."""
    if not 0 < number < WAN_REGION_NAMES or wan_region_names[number].text == NULL:
        return None
    return wan_region_names[number].text[:wan_region_names[number].length].decode()
