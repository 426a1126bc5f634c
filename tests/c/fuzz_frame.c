/* Fuzzes the check of a frame. A header that passes has lengths within the limit. Damage anywhere is found by the check
 * of the header or by the checksum. The name of a stream that passes is of a partition and a bucket that can be. */
#include "fuzz.h"
#include "record/wan_frame.h"

const char *const fuzz_name = "fuzz_frame";

static void fuzz_stream(random_source *source)
{
    uint8_t bytes[sizeof(wan_frame) + sizeof(wan_stream)] __attribute__((aligned(8)));
    wan_frame *frame = (wan_frame *)bytes;
    wan_stream *stream = (wan_stream *)(frame + 1);
    const uint32_t own = 1 + random_below(source, 9);
    *stream = (wan_stream){.region = (uint16_t)random_below(source, 65536),
                           .buckets = (uint16_t)(1 + random_below(source, WAN_WIRE_BUCKETS)),
                           .timeline = 1 + random_next(source) / 2};
    stream->bucket = (uint16_t)random_below(source, stream->buckets);
    *frame = (wan_frame){.magic = WAN_FRAME_MAGIC,
                         .type = WAN_FRAME_STREAM,
                         .length = sizeof(wan_stream),
                         .raw_length = sizeof(wan_stream),
                         .id = own + random_below(source, WAN_WIRE_PARTITIONS - own)};
    FUZZ_CHECK(wan_stream_check(frame, own) == WAN_OK);
    fuzz_mutate(source, bytes, sizeof bytes);
    if (frame->length != sizeof(wan_stream)) return;
    if (wan_stream_check(frame, own) == WAN_OK)
        FUZZ_CHECK(frame->id >= own && frame->id < WAN_WIRE_PARTITIONS && stream->bucket < stream->buckets
                   && stream->buckets <= WAN_WIRE_BUCKETS && stream->timeline && !stream->reserved && !frame->flags);
}

void fuzz_once(random_source *source)
{
    fuzz_stream(source);
    uint8_t bytes[sizeof(wan_frame) + 256] __attribute__((aligned(8)));
    uint32_t length = random_below(source, 257);
    for (size_t n = 0; n < sizeof bytes; n++) bytes[n] = (uint8_t)random_next(source);
    wan_frame *frame = (wan_frame *)bytes;
    *frame = (wan_frame){.magic = WAN_FRAME_MAGIC,
                         .type = (uint8_t)(1 + random_below(source, WAN_FRAME_TYPE_COUNT - 1)),
                         .length = length,
                         .raw_length = length,
                         .id = random_next(source),
                         .count = random_below(source, 1000)};
    if (!random_below(source, 3)) {
        frame->flags = WAN_FRAME_LZ4;
        frame->raw_length = random_below(source, length * WAN_LZ4_RATIO_MAX + 1);
    }
    frame->crc = wan_frame_crc(frame, frame + 1, length);
    FUZZ_CHECK(wan_frame_check(frame) == WAN_OK);

    uint8_t *exact = fuzz_exact(bytes, sizeof(wan_frame) + length);
    fuzz_mutate(source, exact, random_below(source, 2) ? sizeof(wan_frame) : sizeof(wan_frame) + length);
    const wan_frame *got = (const wan_frame *)exact;
    if (wan_frame_check(got) == WAN_OK) {
        FUZZ_CHECK(got->length <= WAN_FRAME_BYTES_MAX && got->raw_length <= WAN_FRAME_BYTES_MAX);
        FUZZ_CHECK(got->type > 0 && got->type < WAN_FRAME_TYPE_COUNT);
        if (got->length <= length && wan_frame_crc(got, got + 1, got->length) == got->crc)
            FUZZ_CHECK(memcmp(exact, bytes, sizeof(wan_frame) + got->length) == 0);
    }
    free(exact);
}
