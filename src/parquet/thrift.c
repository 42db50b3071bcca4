/* Parses Thrift's compact protocol (thrift/doc/specs/thrift-compact-protocol.md): the footer of a
 * Parquet file and the headers of its pages. Owns nothing. A fault is only marked; callers look at
 * it once, at the end. */
#include "parquet/parquet_internal.h"

enum { THRIFT_DEPTH = 32 };

static int fail_thrift(Thrift *thrift, bool cut) {
    thrift->cut = thrift->bad ? thrift->cut : cut;
    thrift->bad = true;
    thrift->at = thrift->end;
    return 0;
}

static int next_byte(Thrift *thrift) { return thrift->at < thrift->end ? *thrift->at++ : fail_thrift(thrift, true); }

static uint64_t read_varint(Thrift *thrift) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        int byte = next_byte(thrift);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return value;
    }
    return (uint64_t)fail_thrift(thrift, false);
}

static int64_t read_zigzag(Thrift *thrift) {
    uint64_t value = read_varint(thrift);
    return (int64_t)(value >> 1 ^ -(value & 1));
}

int thrift_field(Thrift *thrift, int *id) {
    int head = next_byte(thrift), type = head & 15, step = head >> 4;
    if (type == THRIFT_STOP) return THRIFT_STOP;
    int64_t number = step ? *id + step : read_zigzag(thrift);
    if (type > THRIFT_STRUCT || number < 0 || number > INT16_MAX) return fail_thrift(thrift, false);
    *id = (int)number;
    return thrift->bad ? THRIFT_STOP : type;
}

int64_t thrift_int(Thrift *thrift, int type) {
    if (type == THRIFT_I8) return (int8_t)next_byte(thrift);
    return type > THRIFT_I8 && type <= THRIFT_I64 ? read_zigzag(thrift) : fail_thrift(thrift, false);
}

size_t thrift_bytes(Thrift *thrift, int type, const char **bytes) {
    uint64_t size = type == THRIFT_BYTES ? read_varint(thrift) : (uint64_t)fail_thrift(thrift, false);
    bool cut = size > (size_t)(thrift->end - thrift->at);
    if (cut) size = (uint64_t)fail_thrift(thrift, true);
    *bytes = (const char *)thrift->at;
    thrift->at += size;
    return size;
}

/* Reads the head of a list or a set; *element receives the type of its elements. */
static size_t list_head(Thrift *thrift, int *element) {
    int head = next_byte(thrift);
    uint64_t count = head >> 4 == 15 ? read_varint(thrift) : (uint64_t)(head >> 4);
    *element = head & 15;
    if (count > (size_t)(thrift->end - thrift->at)) return (size_t)fail_thrift(thrift, true);
    return (size_t)count;
}

size_t thrift_list(Thrift *thrift, int type, int element) {
    int found;
    size_t count = type == THRIFT_LIST ? list_head(thrift, &found) : (size_t)fail_thrift(thrift, false);
    return type == THRIFT_LIST && count && found != element ? (size_t)fail_thrift(thrift, false) : count;
}

static void skip_value(Thrift *thrift, int type, int depth);

/* Skips elements; those that are booleans take a byte each. */
static void skip_elements(Thrift *thrift, size_t count, int type, int depth) {
    for (size_t i = 0; i < count && !thrift->bad; i++)
        skip_value(thrift, type == THRIFT_TRUE || type == THRIFT_FALSE ? THRIFT_I8 : type, depth);
}

static void skip_map(Thrift *thrift, int depth) {
    uint64_t count = read_varint(thrift);
    int types = count ? next_byte(thrift) : 0;
    if (count > (size_t)(thrift->end - thrift->at)) fail_thrift(thrift, true);
    for (uint64_t i = 0; i < count && !thrift->bad; i++) {
        skip_elements(thrift, 1, types >> 4, depth);
        skip_elements(thrift, 1, types & 15, depth);
    }
}

static void skip_value(Thrift *thrift, int type, int depth) {
    const char *bytes;
    int id = 0, inner;
    if (depth > THRIFT_DEPTH) fail_thrift(thrift, false);
    switch (thrift->bad ? THRIFT_TRUE : type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE: break;
    case THRIFT_I8:
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64: thrift_int(thrift, type); break;
    case THRIFT_REAL:
        if (thrift->end - thrift->at < 8) fail_thrift(thrift, true);
        else thrift->at += 8;
        break;
    case THRIFT_BYTES: thrift_bytes(thrift, type, &bytes); break;
    case THRIFT_LIST:
    case THRIFT_SET: {
        size_t count = list_head(thrift, &inner);
        skip_elements(thrift, count, inner, depth + 1);
        break;
    }
    case THRIFT_MAP: skip_map(thrift, depth + 1); break;
    case THRIFT_STRUCT:
        while ((inner = thrift_field(thrift, &id))) skip_value(thrift, inner, depth + 1);
        break;
    default: fail_thrift(thrift, false);
    }
}

void thrift_skip(Thrift *thrift, int type) { skip_value(thrift, type, 0); }
