/* Owns the checks of frames and batches that come from a socket. */
#include "record/wan_frame.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "record/wan_record.h"

wan_status wan_frame_check(const wan_frame *frame)
{
    if (frame->magic != WAN_FRAME_MAGIC) {
        const uint8_t *first = (const uint8_t *)frame;
        char text[8] = "";
        for (int n = 0; n < 4; n++) text[n] = isprint(first[n]) ? (char)first[n] : '.';
        return WAN_FAIL(WAN_CORRUPT, "not a frame of this protocol: it begins with %02x %02x %02x %02x (\"%s\")",
                        first[0], first[1], first[2], first[3], text);
    }
    if (frame->type == 0 || frame->type >= WAN_FRAME_TYPE_COUNT)
        return WAN_FAIL(WAN_CORRUPT, "frame type %u is unknown", frame->type);
    if (frame->length > WAN_FRAME_BYTES_MAX || frame->raw_length > WAN_FRAME_BYTES_MAX)
        return WAN_FAIL(WAN_CORRUPT, "frame of %" PRIu32 " bytes is over the limit %u",
                        frame->length > frame->raw_length ? frame->length : frame->raw_length, WAN_FRAME_BYTES_MAX);
    if (!(frame->flags & WAN_FRAME_LZ4) && frame->length != frame->raw_length)
        return WAN_FAIL(WAN_CORRUPT, "frame lengths %" PRIu32 " and %" PRIu32 " differ without compression",
                        frame->length, frame->raw_length);
    if ((uint64_t)frame->length * WAN_LZ4_RATIO_MAX < frame->raw_length)
        return WAN_FAIL(WAN_CORRUPT, "frame of %" PRIu32 " packed bytes cannot unpack to %" PRIu32, frame->length,
                        frame->raw_length);
    return WAN_OK;
}

wan_status wan_stream_check(const wan_frame *frame, uint32_t own_partitions)
{
    const wan_stream *stream = (const wan_stream *)(frame + 1);
    if (frame->length != sizeof(wan_stream) || frame->flags)
        return WAN_FAIL(WAN_CORRUPT, "name of a stream of %" PRIu32 " bytes", frame->length);
    if (frame->id < own_partitions || frame->id >= WAN_WIRE_PARTITIONS)
        return WAN_FAIL(WAN_CORRUPT, "partition %" PRIu64 " cannot be a stream of a sender with %" PRIu32 " partitions",
                        frame->id, own_partitions);
    if (stream->buckets == 0 || stream->buckets > WAN_WIRE_BUCKETS || stream->bucket >= stream->buckets)
        return WAN_FAIL(WAN_CORRUPT, "partition %" PRIu64 ": bucket %u of %u", frame->id, stream->bucket,
                        stream->buckets);
    if (stream->timeline == 0 || stream->reserved)
        return WAN_FAIL(WAN_CORRUPT, "partition %" PRIu64 ": timeline %" PRIu64 " of bucket %u (%u)", frame->id,
                        stream->timeline, stream->bucket, stream->reserved);
    return WAN_OK;
}

wan_status wan_batch_check(const uint8_t *payload, uint64_t length, uint32_t count)
{
    if (length < sizeof(wan_batch_head)) return WAN_FAIL(WAN_CORRUPT, "batch of %" PRIu64 " bytes has no head", length);
    const wan_batch_head *head = (const wan_batch_head *)payload;
    if (head->sections == 0 || head->sections > WAN_SECTIONS_MAX)
        return WAN_FAIL(WAN_CORRUPT, "batch of %" PRIu32 " sections; 1 to %u are possible", head->sections,
                        WAN_SECTIONS_MAX);
    uint64_t at = sizeof(wan_batch_head) + (uint64_t)head->sections * sizeof(wan_section);
    if (at > length)
        return WAN_FAIL(WAN_CORRUPT, "batch of %" PRIu64 " bytes cannot hold %" PRIu32 " sections", length,
                        head->sections);
    const wan_section *section = (const wan_section *)(head + 1);
    uint64_t records = 0;
    for (uint32_t n = 0; n < head->sections; n++, section++) {
        if (section->bytes > length - at || section->bytes % 8)
            return WAN_FAIL(WAN_CORRUPT, "section %" PRIu32 " of %" PRIu32 " bytes does not fit into the batch", n,
                            section->bytes);
        if (section->first == 0 || section->through < section->first || section->through == WAN_NO_SEQUENCE
            || section->acknowledged >= section->first || section->count > section->through - section->first + 1)
            return WAN_FAIL(WAN_CORRUPT, "section %" PRIu32 " covers %" PRIu64 "..%" PRIu64 " with %" PRIu32 " records",
                            n, section->first, section->through, section->count);
        if (section->duplicates > section->count || section->reserved)
            return WAN_FAIL(WAN_CORRUPT,
                            "section %" PRIu32 " of %" PRIu32 " records with %" PRIu32 " possible duplicates (%" PRIu32
                            ")",
                            n, section->count, section->duplicates, section->reserved);
        const uint64_t end = at + section->bytes, head_bytes = wan_section_head_bytes(section);
        if (head_bytes > section->bytes)
            return WAN_FAIL(WAN_CORRUPT,
                            "section %" PRIu32 " of %" PRIu32 " bytes cannot hold the sequences of %" PRIu32 " records",
                            n, section->bytes, section->count);
        uint64_t least = section->first;
        for (uint64_t k = 0; k < head_bytes / sizeof(uint64_t); k++) {
            const uint64_t sequence = ((const uint64_t *)(payload + at))[k];
            if (sequence < least || sequence > section->through)
                return WAN_FAIL(WAN_CORRUPT, "record %" PRIu64 " is out of order in %" PRIu64 "..%" PRIu64, sequence,
                                section->first, section->through);
            least = sequence + 1;
        }
        at += head_bytes;
        for (uint32_t k = 0; k < section->count; k++) {
            wan_status status = wan_record_check(payload + at, end - at);
            if (status != WAN_OK) return status;
            at += wan_record_length((const wan_record *)(payload + at));
        }
        if (at != end) return WAN_FAIL(WAN_CORRUPT, "section %" PRIu32 " has %" PRIu64 " bytes too many", n, end - at);
        records += section->count;
    }
    if (at != length || records != count)
        return WAN_FAIL(WAN_CORRUPT, "batch ends at %" PRIu64 " of %" PRIu64 " with %" PRIu64 " of %" PRIu32 " records",
                        at, length, records, count);
    return WAN_OK;
}
