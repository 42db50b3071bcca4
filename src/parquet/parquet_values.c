/* Decodes the values of a page one by one (parquet-format, Encodings.md), so that a short page that
 * stands for many values needs no memory for them. ParquetValues own a decompressed page and the
 * last text of DELTA_BYTE_ARRAY. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "base/array.h"
#include "parquet/parquet_internal.h"

size_t parquet_width(int type) {
    return type == PARQUET_INT32 || type == PARQUET_FLOAT ? 4 : type == PARQUET_INT64 || type == PARQUET_DOUBLE ? 8 : 0;
}

/* Returns `width` bits, at most 64, from `bit` on of bytes that have them. */
static uint64_t take_bits(const unsigned char *bytes, const unsigned char *end, uint64_t bit, int width) {
    const unsigned char *at = bytes + (bit >> 3);
    int shift = (int)(bit & 7);
    uint64_t low = 0;
    assert(width <= 64);
    if (width == 0) return 0;
    if (end - at >= 8) memcpy(&low, at, 8);
    else
        for (int i = 0; at + i < end; i++) low |= (uint64_t)at[i] << 8 * i;
    low >>= shift;
    if (shift + width > 64) low |= (uint64_t)at[8] << (64 - shift);
    return width == 64 ? low : low & (((uint64_t)1 << width) - 1);
}

static bool take_varint(const unsigned char **at, const unsigned char *end, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && *at < end; shift += 7) {
        unsigned char byte = *(*at)++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

/* -- RLE ------------------------------------------------------------------------------------------------------------- */

/* Begins the next run that has values. */
static bool begin_run(ParquetRuns *runs) {
    uint64_t head;
    while (runs->left == 0) {
        if (!take_varint(&runs->at, runs->end, &head) || head >> 1 > PARQUET_PAGE_VALUES) return false;
        uint64_t bytes = (uint64_t)(runs->end - runs->at),
                 used = head & 1 ? (head >> 1) * (uint64_t)runs->width : (uint64_t)(runs->width + 7) / 8;
        runs->packed = head & 1 ? runs->at : NULL;
        runs->bit = 0;
        runs->left = head & 1 ? (head >> 1) * 8 : head >> 1;
        if (used > bytes && !runs->packed) return false;
        if (used > bytes) runs->left = bytes * 8 / (uint64_t)runs->width; /* some writers cut off the last group of 8 */
        if (used > bytes) used = bytes;
        if (!runs->packed) runs->value = take_bits(runs->at, runs->end, 0, runs->width);
        runs->at += used;
    }
    return true;
}

static bool next_of_runs(ParquetRuns *runs, uint64_t *value) {
    if (runs->left == 0 && !begin_run(runs)) return false;
    runs->left--;
    *value = runs->value;
    if (!runs->packed) return true;
    *value = take_bits(runs->packed, runs->at, runs->bit, runs->width);
    runs->bit += (uint64_t)runs->width;
    return true;
}

/* Returns the bits of the numbers 0 to `most`. */
static int bits_of(int most) {
    int width = 0;
    while (most >> width) width++;
    return width;
}

/* -- DELTA_BINARY_PACKED --------------------------------------------------------------------------------------------- */

static bool take_zigzag(ParquetDeltas *deltas, uint64_t *value) {
    bool good = take_varint(&deltas->at, deltas->end, value);
    *value = *value >> 1 ^ -(*value & 1);
    return good;
}

/* Begins numbers, at most `most`. */
static bool begin_deltas(ParquetDeltas *deltas, const unsigned char *at, const unsigned char *end, uint64_t most) {
    uint64_t block;
    *deltas = (ParquetDeltas){.at = at, .end = end};
    bool good = take_varint(&deltas->at, end, &block) && take_varint(&deltas->at, end, &deltas->parts) &&
                take_varint(&deltas->at, end, &deltas->left) && take_zigzag(deltas, &deltas->value);
    if (!good || block > 1 << 20 || deltas->parts == 0 || deltas->parts > block / 8 || block % (8 * deltas->parts) || deltas->left > most)
        return false;
    deltas->per_part = block / deltas->parts;
    deltas->part = deltas->parts; /* a block begins before the second number */
    return true;
}

/* Begins the next part of a block, and the block with its first part. */
static bool begin_part(ParquetDeltas *deltas) {
    if (deltas->part == deltas->parts) {
        if (!take_zigzag(deltas, &deltas->least) || (uint64_t)(deltas->end - deltas->at) < deltas->parts) return false;
        deltas->widths = deltas->at;
        deltas->at += deltas->parts;
        deltas->part = 0;
    }
    deltas->width = deltas->widths[deltas->part++];
    deltas->packed = deltas->at;
    deltas->bit = 0;
    uint64_t bytes = deltas->per_part / 8 * (uint64_t)deltas->width;
    if (deltas->width > 64 || bytes > (uint64_t)(deltas->end - deltas->at)) return false;
    deltas->at += bytes;
    deltas->part_left = deltas->per_part;
    return true;
}

static bool next_of_deltas(ParquetDeltas *deltas, uint64_t *value) {
    if (deltas->left == 0) return false;
    *value = deltas->value;
    if (--deltas->left == 0) return true;
    if (deltas->part_left == 0 && !begin_part(deltas)) return false;
    deltas->part_left--;
    deltas->value += deltas->least + take_bits(deltas->packed, deltas->at, deltas->bit, deltas->width);
    deltas->bit += (uint64_t)deltas->width;
    return true;
}

/* Returns the byte after numbers that begin here; NULL: they are malformed. */
static const unsigned char *end_of_deltas(ParquetDeltas deltas) {
    uint64_t value;
    while (deltas.left > 0)
        if (!next_of_deltas(&deltas, &value)) return NULL;
    return deltas.at;
}

/* -- Pages ----------------------------------------------------------------------------------------------------------- */

bool parquet_page_unpack(const ParquetPage *page, size_t levels, unsigned char *out, size_t size, Error *error) {
    const unsigned char *in = page->stored + levels;
    size_t stored = (size_t)page->stored_bytes - levels;
    if (page->summed && (uint32_t)crc32(0, page->stored, (uInt)page->stored_bytes) != page->crc)
        return parquet_refuse(error, "a page does not have its checksum");
    if (!page->packed && stored != size) return parquet_refuse(error, "a page does not have its size");
    const char *fault = page->packed && size > 0 ? parquet_unpack(page->codec, in, stored, out, size) : NULL;
    if (!page->packed && size > 0) memcpy(out, in, size);
    return !fault || parquet_refuse(error, "a page does not decompress: %s", fault);
}

/* Opens the levels at values->at, whose bytes precede them unless the header gives their number. */
static bool open_levels(ParquetValues *values, ParquetRuns *runs, int most, const int32_t *bytes) {
    uint32_t size = 0;
    *runs = (ParquetRuns){.width = bits_of(most)};
    if (most == 0) return !bytes || *bytes == 0;
    if (bytes) size = (uint32_t)*bytes;
    else if (values->end - values->at < 4) return false;
    else memcpy(&size, values->at, 4), values->at += 4;
    if (size > (size_t)(values->end - values->at)) return false;
    runs->at = values->at;
    runs->end = values->at += size;
    return true;
}

/* Opens the values at values->at. */
static bool open_encoding(ParquetValues *values) {
    bool texts = values->type == PARQUET_BYTES;
    size_t width = parquet_width(values->type);
    uint32_t size;
    values->bit = values->last_size = 0;
    values->indices = (ParquetRuns){0};
    values->deltas = values->prefixes = (ParquetDeltas){0};
    if (values->at == values->end) return true; /* all values are null */
    switch (values->encoding) {
    case ENCODING_PLAIN: return true;
    case ENCODING_PLAIN_DICTIONARY:
    case ENCODING_DICTIONARY:
        if (!values->dictionary) return false;
        values->indices = (ParquetRuns){.at = values->at + 1, .end = values->end, .width = *values->at};
        return values->indices.width <= 32;
    case ENCODING_RLE:
        if (values->type != PARQUET_BOOLEAN || values->end - values->at < 4) return false;
        memcpy(&size, values->at, 4);
        values->indices = (ParquetRuns){.at = values->at + 4, .end = values->end, .width = 1};
        return size <= (size_t)(values->end - values->at - 4);
    case ENCODING_DELTAS:
        return (values->type == PARQUET_INT32 || values->type == PARQUET_INT64) &&
               begin_deltas(&values->deltas, values->at, values->end, (uint64_t)values->left);
    case ENCODING_DELTA_TEXTS:
        if (!texts || !begin_deltas(&values->prefixes, values->at, values->end, (uint64_t)values->left)) return false;
        if (!(values->at = end_of_deltas(values->prefixes))) return false;
        __attribute__((fallthrough));
    case ENCODING_DELTA_LENGTHS:
        return texts && begin_deltas(&values->deltas, values->at, values->end, (uint64_t)values->left) &&
               (values->at = end_of_deltas(values->deltas));
    case ENCODING_SPLIT_BYTES:
        values->split = width ? (size_t)(values->end - values->at) / width : 0;
        return width && values->split * width == (size_t)(values->end - values->at);
    default: return false;
    }
}

bool parquet_values_open(ParquetValues *values, const ParquetPage *page, ParquetDictionary *dictionary, Error *error) {
    size_t levels = (size_t)page->repetition_bytes + (size_t)page->definition_bytes, size = (size_t)page->bytes;
    values->left = page->values;
    values->type = page->type;
    values->encoding = page->encoding;
    values->defined = page->defined;
    values->lists = page->lists;
    values->dictionary = dictionary;
    if (page->indexed && dictionary && !parquet_dictionary_decode(dictionary, error)) return false;
    array_reserve(values->unpacked, values->unpacked_capacity, size + 1);
    memcpy(values->unpacked, page->stored, levels);
    if (!parquet_page_unpack(page, levels, values->unpacked + levels, size - levels, error)) return false;
    values->at = values->unpacked;
    values->end = values->unpacked + size;
    if (!open_levels(values, &values->repetition, page->lists, page->second ? &page->repetition_bytes : NULL) ||
        !open_levels(values, &values->definition, page->defined, page->second ? &page->definition_bytes : NULL))
        return parquet_refuse(error, "the levels of a page are malformed");
    return open_encoding(values) ||
           parquet_refuse(error, "a page is malformed, or has the encoding %d, which smelt does not read for its type", page->encoding);
}

/* -- Values ---------------------------------------------------------------------------------------------------------- */

/* Sets the number that a value of a fixed width has. */
static void set_number(int type, const unsigned char *at, ParquetValue *value) {
    int32_t narrow;
    float single;
    if (type == PARQUET_INT32) memcpy(&narrow, at, 4), value->whole = narrow;
    else if (type == PARQUET_INT64) memcpy(&value->whole, at, 8);
    else if (type == PARQUET_FLOAT) memcpy(&single, at, 4), value->real = (double)single;
    else memcpy(&value->real, at, 8);
}

static bool take_text(ParquetValues *values, size_t size, ParquetValue *value) {
    if (size > (size_t)(values->end - values->at)) return false;
    value->bytes = values->at;
    value->size = size;
    values->at += size;
    return true;
}

static bool take_plain(ParquetValues *values, ParquetValue *value) {
    size_t width = parquet_width(values->type), left = (size_t)(values->end - values->at);
    uint32_t size;
    if (values->type == PARQUET_BOOLEAN) {
        if (values->bit >= 8 * left) return false;
        value->whole = (int64_t)take_bits(values->at, values->end, values->bit++, 1);
        return true;
    }
    if (left < (width ? width : sizeof size)) return false;
    if (width) set_number(values->type, values->at, value);
    else memcpy(&size, values->at, sizeof size);
    values->at += width ? width : sizeof size;
    return width || take_text(values, size, value);
}

static bool take_entry(ParquetValues *values, ParquetValue *value) {
    const ParquetDictionary *dictionary = values->dictionary;
    uint64_t index;
    uint32_t size;
    if (!next_of_runs(&values->indices, &index) || index >= dictionary->count) return false;
    size_t width = parquet_width(values->type);
    if (width) return set_number(values->type, dictionary->bytes + index * width, value), true;
    const unsigned char *at = dictionary->bytes + dictionary->offsets[index];
    memcpy(&size, at, sizeof size);
    value->bytes = at + sizeof size;
    value->size = size;
    return true;
}

/* Takes a text that begins as the one before. */
static bool take_rest(ParquetValues *values, ParquetValue *value) {
    uint64_t shared, size;
    if (!next_of_deltas(&values->prefixes, &shared) || !next_of_deltas(&values->deltas, &size)) return false;
    if (shared > values->last_size || !take_text(values, size, value)) return false;
    array_reserve(values->last, values->last_capacity, shared + size + 1);
    memcpy(values->last + shared, value->bytes, size);
    values->last_size = value->size = shared + size;
    value->bytes = values->last;
    return true;
}

/* Takes a number whose bytes lie apart: first all first bytes, then all second ones, and so on. */
static bool take_split(ParquetValues *values, ParquetValue *value) {
    unsigned char number[8];
    if (values->bit >= values->split) return false;
    for (size_t i = 0; i < parquet_width(values->type); i++) number[i] = values->at[i * values->split + values->bit];
    values->bit++;
    set_number(values->type, number, value);
    return true;
}

static bool take_value(ParquetValues *values, ParquetValue *value) {
    uint64_t number;
    switch (values->encoding) {
    case ENCODING_PLAIN: return take_plain(values, value);
    case ENCODING_RLE:
        if (!next_of_runs(&values->indices, &number)) return false;
        value->whole = (int64_t)number;
        return true;
    case ENCODING_DELTAS:
        if (!next_of_deltas(&values->deltas, &number)) return false;
        value->whole = values->type == PARQUET_INT32 ? (int32_t)number : (int64_t)number;
        return true;
    case ENCODING_DELTA_LENGTHS: return next_of_deltas(&values->deltas, &number) && take_text(values, number, value);
    case ENCODING_DELTA_TEXTS: return take_rest(values, value);
    case ENCODING_SPLIT_BYTES: return take_split(values, value);
    default: return take_entry(values, value);
    }
}

bool parquet_values_next(ParquetValues *values, ParquetValue *value, Error *error) {
    uint64_t repeated = 0, defined = (uint64_t)values->defined;
    *value = (ParquetValue){0};
    bool good = (values->lists == 0 || next_of_runs(&values->repetition, &repeated)) &&
                (values->defined == 0 || next_of_runs(&values->definition, &defined)) && repeated <= (uint64_t)values->lists &&
                defined <= (uint64_t)values->defined;
    value->repeated = (int)repeated;
    value->defined = (int)defined;
    values->left--;
    good = good && (value->defined < values->defined || take_value(values, value));
    return good || parquet_refuse(error, "the values of a page are malformed");
}

void parquet_values_free(ParquetValues *values) {
    free(values->unpacked);
    free(values->last);
    *values = (ParquetValues){0};
}
