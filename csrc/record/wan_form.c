/* Owns the check of keys: UTF-8, and the tagged form as far as a key may use it. It reads every byte once. Recursion
 * ends at WAN_TAGGED_DEPTH_MAX. */
#include "record/wan_form.h"

#include <string.h>

#define BILLION           1000000000u
#define NANOSECONDS_A_DAY (86400ull * BILLION)

int wan_is_utf8(const uint8_t *at, size_t length)
{
    const uint8_t *end = at + length;
    while (at < end) {
        uint64_t eight;
        while (end - at >= 8 && (memcpy(&eight, at, 8), (eight & 0x8080808080808080ull) == 0)) at += 8;
        if (at == end) break;
        uint8_t first = *at++;
        if (first < 0x80) continue;
        /* The second byte decides that a sequence is not too long, is no surrogate, and is not over U+10FFFF. */
        uint8_t low = first == 0xe0   ? 0xa0
                      : first == 0xf0 ? 0x90
                                      : 0x80,
                high = first == 0xed   ? 0x9f
                       : first == 0xf4 ? 0x8f
                                       : 0xbf;
        int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
        if (first < 0xc2 || first > 0xf4 || end - at < more || at[0] < low || at[0] > high) return 0;
        for (int n = 1; n < more; n++)
            if ((at[n] & 0xc0) != 0x80) return 0;
        at += more;
    }
    return 1;
}

typedef struct {
    const uint8_t *at, *end;
} key_reader;

static const char CUT_OFF[] = "it ends in the middle of an object",
                  NOT_SHORTEST[] = "a number or length is not written in the shortest way";

static uint64_t big_endian(const uint8_t *at, unsigned bytes)
{
    uint64_t number = 0;
    for (unsigned n = 0; n < bytes; n++) number = number << 8 | at[n];
    return number;
}

/* Reads a number of `bytes` bytes. It must be at least `least`, because a smaller number has a shorter form. */
static const char *take_number(key_reader *reader, unsigned bytes, uint64_t least, uint64_t *number)
{
    if ((size_t)(reader->end - reader->at) < bytes) return CUT_OFF;
    *number = big_endian(reader->at, bytes);
    reader->at += bytes;
    return *number < least ? NOT_SHORTEST : NULL;
}

static const char *check_object(key_reader *reader, unsigned depth);

static const char *check_array(key_reader *reader, unsigned depth, int ascends)
{
    uint64_t count = 0;
    const char *wrong = NULL;
    const uint8_t *before = NULL;
    size_t before_length = 0;
    if (reader->at == reader->end) return CUT_OFF;
    uint8_t code = *reader->at++;
    if (code >= 0x90 && code <= 0x9f) count = code & 0x0f;
    else if (code == 0xdc) wrong = take_number(reader, 2, 16, &count);
    else if (code == 0xdd) wrong = take_number(reader, 4, 65536, &count);
    else wrong = "a tuple or set does not hold an array";
    for (uint64_t n = 0; n < count && !wrong; n++) {
        const uint8_t *from = reader->at;
        wrong = check_object(reader, depth);
        size_t length = (size_t)(reader->at - from);
        if (!wrong && ascends && n) {
            int order = memcmp(before, from, length < before_length ? length : before_length);
            if (order > 0 || (order == 0 && before_length >= length)) wrong = "the elements of a set are not in order";
        }
        before = from, before_length = length;
    }
    return wrong;
}

static const char *check_moment(const uint8_t *at, size_t length)
{
    uint64_t all;
    switch (length) {
    case 4: return NULL;
    case 8:
        all = big_endian(at, 8);
        if (all >> 34 >= BILLION) return "a second has more than a billion nanoseconds";
        return all >> 32 == 0 ? NOT_SHORTEST : NULL;
    case 12:
        if (big_endian(at, 4) >= BILLION) return "a second has more than a billion nanoseconds";
        return big_endian(at + 4, 8) >> 34 == 0 ? NOT_SHORTEST : NULL;
    }
    return "a moment is not 4, 8 or 12 bytes long";
}

static const char *check_big_int(const uint8_t *at, size_t length)
{
    if (length < 9) return NOT_SHORTEST;
    if (length > WAN_KEY_INT_BYTES_MAX) return "an integer is too large for a key";
    uint8_t last = at[length - 1], negative = at[length - 2] >> 7;
    if ((last == 0 && (!negative || length == 9)) || (last == 0xff && negative)) return NOT_SHORTEST;
    return NULL;
}

static int take_digits(key_reader *reader)
{
    const uint8_t *from = reader->at;
    while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9') reader->at++;
    return reader->at > from && (*from != '0' || reader->at == from + 1);
}

/* The text is -?digits E -?digits, without leading zeros. */
static const char *check_decimal(const uint8_t *at, size_t length)
{
    key_reader reader = {at, at + length};
    reader.at += reader.at < reader.end && *reader.at == '-';
    int fits = take_digits(&reader) && reader.at < reader.end && *reader.at++ == 'E';
    int negative = fits && reader.at < reader.end && *reader.at == '-';
    reader.at += negative;
    fits = fits && take_digits(&reader) && reader.at == reader.end
           && !(negative && reader.end[-1] == '0' && reader.end[-2] == '-');
    return fits ? NULL : "a decimal is not digits, E and an exponent";
}

/* Checks the name of a class or serializer, with what follows it: [text, text] or [text, bytes]. */
static const char *check_named(key_reader *reader, int second_is_text)
{
    const char *wrong = NULL;
    if (reader->at == reader->end || *reader->at++ != 0x92) return "a name is not in an array of two";
    for (int n = 0; n < 2 && !wrong; n++) {
        if (reader->at == reader->end) return CUT_OFF;
        uint8_t code = *reader->at;
        int is_text = (code >= 0xa0 && code <= 0xbf) || (code >= 0xd9 && code <= 0xdb),
            is_bytes = code >= 0xc4 && code <= 0xc6;
        if (n == 0 || second_is_text ? !is_text : !is_bytes)
            return "a name is not text, or what follows it is not bytes";
        wrong = check_object(reader, WAN_TAGGED_DEPTH_MAX);
    }
    return wrong;
}

static const char *check_extension(key_reader *reader, uint64_t length, unsigned depth)
{
    if ((uint64_t)(reader->end - reader->at) < length + 1) return CUT_OFF;
    int8_t tag = (int8_t)*reader->at++;
    key_reader inner = {reader->at, reader->at + length};
    const char *wrong = NULL;
    reader->at = inner.end;
    switch (tag) {
    case WAN_TAG_INSTANT:
    case WAN_TAG_NAIVE:
    case WAN_TAG_DURATION: return check_moment(inner.at, length);
    case WAN_TAG_BIG_INT: return check_big_int(inner.at, length);
    case WAN_TAG_DATE: return length == 4 ? NULL : "a date is not 4 bytes long";
    case WAN_TAG_TIME:
        return length == 8 && big_endian(inner.at, 8) < NANOSECONDS_A_DAY ? NULL : "a time of day is not within a day";
    case WAN_TAG_DECIMAL: return check_decimal(inner.at, length);
    case WAN_TAG_UUID: return length == 16 ? NULL : "a UUID is not 16 bytes long";
    case WAN_TAG_TUPLE:
    case WAN_TAG_FROZENSET:
        if (depth >= WAN_TAGGED_DEPTH_MAX) return "it is nested too deep";
        wrong = check_array(&inner, depth + 1, tag == WAN_TAG_FROZENSET);
        break;
    case WAN_TAG_ENUM:
    case WAN_TAG_USER: wrong = check_named(&inner, tag == WAN_TAG_ENUM); break;
    case WAN_TAG_ZONED: return "a time in a zone cannot be a key; use its instant";
    case WAN_TAG_SET: return "a set cannot be a key or a part of one; use a frozenset";
    default: return "an extension is not known to this version";
    }
    return wrong ? wrong : inner.at == inner.end ? NULL : "bytes follow the content of an extension";
}

static const char *check_object(key_reader *reader, unsigned depth)
{
    static const struct {
        uint8_t bytes;
        uint64_t least;
    } unsigned_of[] = {{1, 128}, {2, 256}, {4, 65536}, {8, 1ull << 32}};
    static const uint64_t least_length[] = {0, 256, 65536};
    uint64_t number = 0;
    const char *wrong;
    if (reader->at == reader->end) return CUT_OFF;
    uint8_t code = *reader->at++;
    if (code < 0x80 || code >= 0xe0 || code == 0xc0 || code == 0xc2 || code == 0xc3) return NULL;
    if (code <= 0x9f || code >= 0xdc) return "a list or dict cannot be a key or a part of one; use a tuple";
    if (code >= 0xcc && code <= 0xcf)
        return take_number(reader, unsigned_of[code - 0xcc].bytes, unsigned_of[code - 0xcc].least, &number);
    if (code >= 0xd0 && code <= 0xd3) {
        unsigned bytes = 1u << (code - 0xd0);
        WAN_DEBUG_CHECK(bytes >= 1 && bytes <= 8);
        if ((wrong = take_number(reader, bytes, 0, &number))) return wrong;
        int64_t value = (int64_t)(number << (64 - 8 * bytes)) >> (64 - 8 * bytes);
        return value < (bytes == 1 ? -32 : -(1ll << (4 * bytes - 1))) ? NULL : NOT_SHORTEST;
    }
    if (code == 0xcb) return take_number(reader, 8, 0, &number);
    if (code >= 0xd4 && code <= 0xd8) return check_extension(reader, 1u << (code - 0xd4), depth);
    if (code >= 0xc7 && code <= 0xc9) {
        if ((wrong = take_number(reader, 1u << (code - 0xc7), least_length[code - 0xc7], &number))) return wrong;
        if (number && number <= 16 && (number & (number - 1)) == 0) return NOT_SHORTEST;
        return check_extension(reader, number, depth);
    }
    int is_text = 1;
    if (code >= 0xa0 && code <= 0xbf) number = code & 0x1f, wrong = NULL;
    else if (code >= 0xd9 && code <= 0xdb)
        wrong = take_number(reader, 1u << (code - 0xd9), code == 0xd9 ? 32 : least_length[code - 0xd9], &number);
    else if (code >= 0xc4 && code <= 0xc6)
        is_text = 0, wrong = take_number(reader, 1u << (code - 0xc4), least_length[code - 0xc4], &number);
    /* This also refuses floats of 32 bits, which pywan does not write. */
    else return "it has a byte that stands for nothing";
    if (wrong) return wrong;
    if ((uint64_t)(reader->end - reader->at) < number) return CUT_OFF;
    if (is_text && !wan_is_utf8(reader->at, number)) return "its text is not UTF-8";
    reader->at += number;
    return NULL;
}

/* Whether the object has a form other than the tagged one. If such an object could also be tagged, it would be two
 * keys. */
static int has_own_form(const uint8_t *key, size_t length)
{
    uint8_t code = length ? key[0] : 0xc1;
    if (code == 0xcf) return length < 2 || key[1] < 0x80;
    return code < 0x80 || (code >= 0xa0 && code <= 0xc0) || (code >= 0xc4 && code <= 0xc6)
           || (code >= 0xca && code <= 0xd3) || (code >= 0xd9 && code <= 0xdb) || code >= 0xe0;
}

const char *wan_key_fault(const uint8_t *key, size_t length, uint8_t form)
{
    if (wan_key_is_plain(key, length, form)) return NULL;
    key_reader reader = {key, key + length};
    const char *wrong = "its form is not known";
    switch (form) {
    case WAN_FORM_TEXT: wrong = wan_is_utf8(key, length) ? NULL : "its text is not UTF-8"; break;
    case WAN_FORM_TAGGED:
        wrong =
            has_own_form(key, length) ? "it has a form of its own and is written as tagged" : check_object(&reader, 0);
        break;
    case WAN_FORM_NONE: wrong = "None cannot be a key"; break;
    case WAN_FORM_INT:
    case WAN_FORM_FLOAT: wrong = "a number is not 8 bytes long"; break;
    case WAN_FORM_USER: wrong = check_named(&reader, 0); break;
    }
    if (!wrong && (form == WAN_FORM_TAGGED || form == WAN_FORM_USER) && reader.at != reader.end)
        wrong = "bytes follow its object";
    return wrong;
}

wan_status wan_key_check_content(const uint8_t *key, size_t length, uint8_t form)
{
    static const char *const form_names[WAN_FORM_COUNT] = {
        "bytes", "text", "a tagged object", "None", "an int", "a float", "an object of a registered class"};
    const char *wrong = wan_key_fault(key, length, form);
    if (!wrong) return WAN_OK;
    return WAN_FAIL(WAN_CORRUPT, "a key of %zu bytes, written as %s (form %u), is refused: %s", length,
                    form < WAN_FORM_COUNT ? form_names[form] : "something unknown", form, wrong);
}
