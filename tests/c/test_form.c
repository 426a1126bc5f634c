/* Owns the tests of the check of keys. Every object can be written in one way only, and any other way is no key. */
#include "harness.h"
#include "record/wan_form.h"

typedef struct {
    const char *bytes;
    size_t length;
    int is_key;
    const char *what;
} sample;
#define KEY(bytes, what)    {bytes, sizeof bytes - 1, 1, what}
#define NO_KEY(bytes, what) {bytes, sizeof bytes - 1, 0, what}

static void expect_all(const sample *samples, size_t count, uint8_t form)
{
    for (size_t n = 0; n < count; n++) {
        int is_key = wan_key_check((const uint8_t *)samples[n].bytes, samples[n].length, form) == WAN_OK;
        if (is_key != samples[n].is_key) printf("%s (form %u)\n", samples[n].what, form);
        EXPECT_EQUAL(is_key, samples[n].is_key);
        if (!samples[n].is_key || form != WAN_FORM_TAGGED) continue;
        /* A key that is cut, or has more bytes behind it, is no key. */
        uint8_t more[256];
        memcpy(more, samples[n].bytes, samples[n].length);
        more[samples[n].length] = 0xc0;
        EXPECT_EQUAL(wan_key_check(more, samples[n].length + 1, form), WAN_CORRUPT);
        for (size_t cut = 0; cut < samples[n].length; cut++) EXPECT_EQUAL(wan_key_check(more, cut, form), WAN_CORRUPT);
    }
}
#define EXPECT_ALL(samples, form) expect_all(samples, sizeof samples / sizeof *samples, form)

static void the_length_of_a_key_fits_its_form(void)
{
    EXPECT_EQUAL(wan_key_check((const uint8_t *)"", 0, WAN_FORM_BYTES), WAN_OK);
    EXPECT_EQUAL(wan_key_check((const uint8_t *)"", 0, WAN_FORM_TEXT), WAN_OK);
    for (size_t length = 0; length < 17; length++)
        for (int form = WAN_FORM_INT; form <= WAN_FORM_FLOAT; form++)
            EXPECT_EQUAL(wan_key_check((const uint8_t *)"0123456789abcdefg", length, (uint8_t)form),
                         length == 8 ? WAN_OK : WAN_CORRUPT);
    EXPECT_EQUAL(wan_key_check((const uint8_t *)"", 0, WAN_FORM_NONE), WAN_CORRUPT);
    EXPECT_EQUAL(wan_key_check((const uint8_t *)"x", 1, WAN_FORM_COUNT), WAN_CORRUPT);
}

static void text_keys_are_utf8(void)
{
    static const sample samples[] = {
        KEY("plain", "ASCII"),
        KEY("a plain text of more than eight bytes", "long ASCII"),
        KEY("gr\xc3\xbc\xc3\x9f"
            "e",
            "two bytes"),
        KEY("\xe2\x82\xac", "three bytes"),
        KEY("\xf0\x9f\x98\x80", "four bytes"),
        KEY("\xf4\x8f\xbf\xbf", "the last one"),
        KEY("\xed\x9f\xbf", "below the surrogates"),
        NO_KEY("\xff", "no byte of UTF-8"),
        NO_KEY("\x80", "no first byte"),
        NO_KEY("12345678\xc3", "cut off"),
        NO_KEY("\xe2\x82", "cut off"),
        NO_KEY("\xc0\xaf", "two bytes for one"),
        NO_KEY("\xc1\xbf", "two bytes for one"),
        NO_KEY("\xe0\x9f\xbf", "three bytes for two"),
        NO_KEY("\xf0\x8f\xbf\xbf", "four bytes for three"),
        NO_KEY("\xed\xa0\x80", "a surrogate"),
        NO_KEY("\xf4\x90\x80\x80", "beyond the last one"),
        NO_KEY("\xf5\x80\x80\x80", "beyond the last one"),
        NO_KEY("\xe2\x28\xa1", "a second byte that is none"),
        NO_KEY("\xf0\x9f\x98\x28", "a fourth byte that is none"),
    };
    EXPECT_ALL(samples, WAN_FORM_TEXT);
}

static void a_tagged_key_is_written_in_one_way_only(void)
{
    static const sample samples[] = {
        KEY("\xc2", "False"),
        KEY("\xc3", "True"),
        NO_KEY("\xc0", "none"),
        NO_KEY("\x05", "5, whose form is another"),
        NO_KEY("\xe0", "-32"),
        NO_KEY("\xa1k", "text, whose form is another"),
        NO_KEY("\xc4\x01k", "bytes"),
        NO_KEY("\xcb\0\0\0\0\0\0\0\0", "a float"),
        NO_KEY("\xc1", "no byte in use"),
        NO_KEY("\xd3\x80\0\0\0\0\0\0\0", "the smallest integer of its own form"),
        NO_KEY("\xcf\x7f\0\0\0\0\0\0\0", "within int64"),
        KEY("\xcf\x80\0\0\0\0\0\0\0", "2**63"),
        KEY("\xc7\x09\x01\0\0\0\0\0\0\0\0\x01", "2**64"),
        NO_KEY("\xc7\x09\x01\0\0\0\0\0\0\0\x80\0", "2**63 as a large integer"),
        NO_KEY("\xc7\x0a\x01\0\0\0\0\0\0\0\0\x01\0", "2**64 with a zero more"),
        KEY("\xc7\x09\x01\xff\xff\xff\xff\xff\xff\xff\x7f\xff", "-2**63 - 1"),
        NO_KEY("\xc7\x09\x01\0\0\0\0\0\0\0\x80\xff", "-2**63 as a large integer"),
        NO_KEY("\xd7\x01\0\0\0\0\0\0\0\x01", "a large integer of eight bytes"),
        NO_KEY("\x90", "a list"),
        NO_KEY("\x80", "a dict"),
        NO_KEY("\xdc\0\x10", "a long list"),
        KEY("\xd4\x02\x90", "()"),
        KEY("\xd6\x02\x92\x01\xa1k", "(1, 'k')  "),
        KEY("\xc7\x05\x02\x93\xc0\xc3\xd0\xdf", "(None, True, -33)"),
        NO_KEY("\xc7\x03\x02\x91\x01\x02", "a tuple with bytes behind it"),
        NO_KEY("\xd5\x02\x92\x01", "a tuple that is cut off"),
        NO_KEY("\xd5\x02\x91\x90", "a list in a tuple"),
        NO_KEY("\xd4\x02\x01", "a tuple without an array"),
        NO_KEY("\xc7\x01\x02\x90", "a head longer than needed"),
        NO_KEY("\xc8\0\x03\x02\x92\x01\x02", "a head longer than needed"),
        NO_KEY("\xc7\x03\x02\x91\xcc\x7f", "127 in two bytes"),
        KEY("\xc7\x03\x02\x91\xcc\x80", "(128,)"),
        NO_KEY("\xd6\x02\x91\xcd\x00\xff", "255 in three bytes"),
        NO_KEY("\xc7\x03\x02\x91\xd0\x05", "5 as negative"),
        NO_KEY("\xc7\x03\x02\x91\xd0\xe0", "-32 in two bytes"),
        NO_KEY("\xd6\x02\x91\xd1\xff\x80", "-128 in three bytes"),
        KEY("\xd6\x02\x91\xd1\xff\x7f", "(-129,)"),
        NO_KEY("\xc7\x06\x02\x91\xca\0\0\0\0", "a float of four bytes"),
        NO_KEY("\xd6\x02\x91\xd9\x01k", "text with a long head"),
        NO_KEY("\xc7\x03\x02\x91\xa1\xff", "text in a tuple that is not UTF-8"),
        KEY("\xd6\x02\x91\xc4\x01\xff", "(b'\\xff',)"),
        KEY("\xc7\x03\x05\x92\x01\x02", "frozenset({1, 2})"),
        NO_KEY("\xc7\x03\x05\x92\x02\x01", "a set out of order"),
        NO_KEY("\xc7\x03\x05\x92\x01\x01", "a set with one twice"),
        NO_KEY("\xd4\x09\x90", "a set that changes"),
        KEY("\xd6\xff\0\0\0\0", "1970"),
        KEY("\xd7\xff\0\0\0\x04\0\0\0\0", "a nanosecond later"),
        NO_KEY("\xd7\xff\0\0\0\0\0\0\0\x01", "a second in eight bytes"),
        NO_KEY("\xd7\xff\xff\xff\xff\xff\0\0\0\0", "a second of more than a billion nanoseconds"),
        KEY("\xc7\x0c\xff\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", "1969"),
        NO_KEY("\xc7\x0c\xff\0\0\0\0\0\0\0\0\0\0\0\x01", "a second in twelve bytes"),
        NO_KEY("\xc7\x03\xff\0\0\0", "an instant of three bytes"),
        KEY("\xd6\x04\0\0\0\0", "1970 without a zone"),
        KEY("\xd6\x06\0\0\0\0", "no time at all"),
        KEY("\xd6\x03\xff\xff\xff\xff", "a date"),
        NO_KEY("\xd5\x03\0\0", "a date of two bytes"),
        KEY("\xd7\x07\0\0\0\0\0\0\0\0", "midnight"),
        NO_KEY("\xd7\x07\0\0\x4e\x94\x91\x4f\0\0", "24 o'clock"),
        NO_KEY("\xd8\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x0e\x10", "a time in a zone"),
        KEY("\xc7\x06\x0a-150E1", "a decimal"),
        KEY("\xd6\x0a-0E0", "minus zero"),
        NO_KEY("\xd6\x0a"
               "05E0",
               "a decimal with a zero before"),
        NO_KEY("\xd6\x0a"
               "5E-0",
               "an exponent of minus zero"),
        NO_KEY("\xc7\x03\x0aNaN", "no number"),
        NO_KEY("\xd5\x0a"
               "5E",
               "no exponent"),
        NO_KEY("\xd5\x0a"
               "E5",
               "no digits"),
        NO_KEY("\xd4\x0a"
               "5",
               "neither"),
        KEY("\xd8\x0b"
            "0123456789abcdef",
            "a UUID"),
        NO_KEY("\xd7\x0b"
               "01234567",
               "half a UUID"),
        KEY("\xc7\x07\x0c\x92\xa3m:C\xa1"
            "A",
            "a member of an Enum"),
        NO_KEY("\xc7\x08\x0c\x92\xa3m:C\xc4\x01"
               "A",
               "its name as bytes"),
        KEY("\xc7\x07\x0d\x92\xa2st\xc4\x01x", "a user's"),
        NO_KEY("\xd6\x0d\x92\xa1s\xa0", "a user's with text"),
        NO_KEY("\xd4\x0e\0", "an extension not known"),
    };
    EXPECT_ALL(samples, WAN_FORM_TAGGED);
}

static void a_users_key_is_a_name_and_bytes(void)
{
    static const sample samples[] = {
        KEY("\x92\xa5trade\xc4\x02xy", "as it is"),
        NO_KEY("", "nothing"),
        NO_KEY("\x92\xa5trade", "cut off"),
        NO_KEY("\x92\xa5trade\xc4\x02xyz", "more behind it"),
        NO_KEY("\x93\xa5trade\xc4\x02xy\xc0", "three of them"),
        NO_KEY("\x92\xc4\x01t\xc4\x01x", "bytes for a name"),
        NO_KEY("\x92\xa1\xff\xc4\x01x", "a name that is not UTF-8"),
        NO_KEY("\x92\x01\xc4\x01x", "a number for a name"),
        NO_KEY("\x92\xa1t\xc5\0\x01x", "a long head"),
    };
    EXPECT_ALL(samples, WAN_FORM_USER);
}

/* Writes `depth` tuples, each inside the one before. Returns the length. */
static size_t nested(uint8_t *to, unsigned depth)
{
    uint8_t inner[4096];
    size_t length = 1;
    to[0] = 0xc0;
    for (unsigned n = 0; n < depth; n++) {
        size_t content = length + 1, head;
        inner[0] = 0x91;
        memcpy(inner + 1, to, length);
        if (content == 1 || content == 2 || content == 4 || content == 8 || content == 16)
            to[0] = (uint8_t)(content == 1   ? 0xd4
                              : content == 2 ? 0xd5
                              : content == 4 ? 0xd6
                              : content == 8 ? 0xd7
                                             : 0xd8),
            head = 1;
        else if (content < 256) to[0] = 0xc7, to[1] = (uint8_t)content, head = 2;
        else to[0] = 0xc8, to[1] = (uint8_t)(content >> 8), to[2] = (uint8_t)content, head = 3;
        to[head] = WAN_TAG_TUPLE;
        memcpy(to + head + 1, inner, content);
        length = head + 1 + content;
    }
    return length;
}

static void keys_are_nested_up_to_the_limit_and_no_deeper(void)
{
    uint8_t bytes[4096];
    EXPECT_EQUAL(wan_key_check(bytes, nested(bytes, WAN_TAGGED_DEPTH_MAX), WAN_FORM_TAGGED), WAN_OK);
    EXPECT_EQUAL(wan_key_check(bytes, nested(bytes, WAN_TAGGED_DEPTH_MAX + 1), WAN_FORM_TAGGED), WAN_CORRUPT);
    EXPECT_EQUAL(wan_key_check(bytes, nested(bytes, 600), WAN_FORM_TAGGED), WAN_CORRUPT);
}

const test_case form_tests[] = {
    {"the length of a key fits its form", the_length_of_a_key_fits_its_form},
    {"text keys are UTF-8", text_keys_are_utf8},
    {"a tagged key is written in one way only", a_tagged_key_is_written_in_one_way_only},
    {"a user's key is a name and bytes", a_users_key_is_a_name_and_bytes},
    {"keys are nested up to the limit and no deeper", keys_are_nested_up_to_the_limit_and_no_deeper},
    {0},
};
