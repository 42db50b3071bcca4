/* Reads the pages of a column chunk, in their order: headers, dictionary, data pages, all as stored.
 * A ParquetColumn holds its dictionary and owns a window for headers; the caller owns each page. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "parquet/parquet_internal.h"

enum { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 };
enum { HEADER_BYTES = 4096, HEADER_LIMIT = 16 << 20 /* a header may hold the least and the greatest text of its page */ };

/* The fields of PageHeader in parquet.thrift, and of the header inside it. */
typedef struct PageHeader {
    int type;
    int64_t bytes, stored_bytes, values, encoding, level_encodings[2], level_bytes[2];
    uint32_t crc;
    bool summed, unpacked;
} PageHeader;

/* Reads the struct inside a page's header that depends on the kind of page: DataPageHeader,
 * DictionaryPageHeader or DataPageHeaderV2. */
static void read_inner_header(Thrift *thrift, int type, int kind, PageHeader *header) {
    bool second = kind == PAGE_DATA_V2;
    if (type != THRIFT_STRUCT) thrift->bad = true;
    for (int id = 0; (type = thrift_field(thrift, &id));) {
        if (id == 1) header->values = thrift_int(thrift, type);
        else if (id == (second ? 4 : 2)) header->encoding = thrift_int(thrift, type);
        else if (second && (id == 5 || id == 6)) header->level_bytes[id == 5] = thrift_int(thrift, type);
        else if (second && id == 7) header->unpacked = type == THRIFT_FALSE;
        else if (kind == PAGE_DATA && (id == 3 || id == 4)) header->level_encodings[id == 3] = thrift_int(thrift, type);
        else thrift_skip(thrift, type);
    }
}

static void parse_page_header(Thrift *thrift, PageHeader *header) {
    static const int kinds[] = {[5] = PAGE_DATA, [7] = PAGE_DICTIONARY, [8] = PAGE_DATA_V2};
    *header = (PageHeader){.type = -1, .values = -1, .level_encodings = {ENCODING_RLE, ENCODING_RLE}};
    for (int id = 0, type; (type = thrift_field(thrift, &id));) {
        if (id == 1) header->type = (int)thrift_int(thrift, type);
        else if (id == 2) header->bytes = thrift_int(thrift, type);
        else if (id == 3) header->stored_bytes = thrift_int(thrift, type);
        else if (id == 4) header->crc = (uint32_t)thrift_int(thrift, type), header->summed = true;
        else if (id == 5 || id == 7 || id == 8) read_inner_header(thrift, type, kinds[id], header);
        else thrift_skip(thrift, type);
    }
}

/* Reads the header at column->at, whose length nothing says, and steps over it. */
static bool read_page_header(ParquetColumn *column, PageHeader *header, Error *error) {
    int64_t left = column->end - column->at;
    for (int64_t window = HEADER_BYTES;; window *= 8) {
        int64_t bytes = int_min(window, left);
        array_reserve(column->window, column->window_capacity, (size_t)bytes + 1);
        if (!object_read(parquet_bytes(column->file), column->window, bytes, column->at, error)) return error_recode(error, ERROR_DATA);
        Thrift thrift = {.at = column->window, .end = column->window + bytes};
        parse_page_header(&thrift, header);
        if (thrift.cut && bytes < left && bytes < HEADER_LIMIT) continue;
        column->at += thrift.at - column->window;
        return !thrift.bad || parquet_refuse(error, "column %s: the header of a page is malformed", column->node->name);
    }
}

/* Checks the sizes of a page against the chunk and the limits. */
static bool check_page(const ParquetColumn *column, const PageHeader *header, Error *error) {
    const char *name = column->node->name;
    bool data = header->type == PAGE_DATA || header->type == PAGE_DATA_V2;
    if (header->bytes < 0 || header->stored_bytes < 0 || header->stored_bytes > column->end - column->at)
        return parquet_refuse(error, "column %s: a page is longer than its column", name);
    if (!data && header->type != PAGE_DICTIONARY) return true;
    if (header->bytes > PARQUET_PAGE_BYTES || header->values > PARQUET_PAGE_VALUES)
        return parquet_refuse(
            error, "column %s: a page has more than %d bytes or %d values", name, PARQUET_PAGE_BYTES, PARQUET_PAGE_VALUES);
    if (header->values < 0 || (data && header->values > column->values))
        return parquet_refuse(error, "column %s: a page has more values than its column", name);
    int64_t levels[] = {header->level_bytes[0], header->level_bytes[1]}, most = int_min(header->bytes, header->stored_bytes);
    if (levels[0] < 0 || levels[1] < 0 || levels[0] > most || levels[1] > most - levels[0])
        return parquet_refuse(error, "column %s: the levels of a page are longer than the page", name);
    if (header->level_encodings[0] != ENCODING_RLE || header->level_encodings[1] != ENCODING_RLE)
        return parquet_refuse(error, "column %s: its levels have an encoding that smelt does not read: write the file anew", name);
    return true;
}

/* Reads the bytes of the page at column->at. */
static bool load_page(ParquetColumn *column, const PageHeader *header, ParquetPage *page, Error *error) {
    const ParquetNode *node = column->node;
    *page = (ParquetPage){.stored = memory_resize(NULL, (size_t)header->stored_bytes + 1),
        .stored_bytes = (int32_t)header->stored_bytes,
        .bytes = (int32_t)header->bytes,
        .values = (int32_t)header->values,
        .definition_bytes = (int32_t)header->level_bytes[1],
        .repetition_bytes = (int32_t)header->level_bytes[0],
        .defined = node->defined,
        .lists = node->lists,
        .type = (int)node->type,
        .codec = column->codec,
        .encoding = (int)header->encoding,
        .second = header->type == PAGE_DATA_V2,
        .packed = column->codec != CODEC_NONE && !header->unpacked,
        .summed = header->summed,
        .crc = header->crc};
    page->stands_alone = header->encoding == ENCODING_PLAIN || header->encoding == ENCODING_DELTA_LENGTHS;
    page->indexed = header->encoding == ENCODING_DICTIONARY || header->encoding == ENCODING_PLAIN_DICTIONARY;
    if (object_read(parquet_bytes(column->file), page->stored, page->stored_bytes, column->at, error)) return true;
    parquet_page_free(page);
    return error_recode(error, ERROR_DATA);
}

/* -- Dictionaries ---------------------------------------------------------------------------------------------------- */

/* Finds where the texts of a dictionary begin. */
static bool index_texts(ParquetDictionary *dictionary) {
    dictionary->offsets = memory_resize(NULL, array_bytes(dictionary->count + 1, sizeof *dictionary->offsets));
    size_t at = 0;
    for (size_t i = 0; i < dictionary->count; i++) {
        uint32_t size;
        if (dictionary->size - at < sizeof size) return false;
        memcpy(&size, dictionary->bytes + at, sizeof size);
        dictionary->offsets[i] = (uint32_t)at;
        at += sizeof size;
        if (dictionary->size - at < size) return false;
        at += size;
    }
    return true;
}

static bool decode_dictionary(ParquetDictionary *dictionary, Error *error) {
    const ParquetPage *page = &dictionary->page;
    bool plain = page->encoding == ENCODING_PLAIN || page->encoding == ENCODING_PLAIN_DICTIONARY;
    size_t width = parquet_width(page->type);
    dictionary->bytes = memory_resize(NULL, dictionary->size + 1);
    if (!parquet_page_unpack(page, 0, dictionary->bytes, dictionary->size, error))
        return error_context(error, "column %s: its dictionary", dictionary->column);
    bool good = plain && (width ? dictionary->count <= dictionary->size / width
                                : page->type == PARQUET_BYTES && dictionary->count <= dictionary->size / 4 && index_texts(dictionary));
    return good || parquet_refuse(error, "column %s: its dictionary is malformed", dictionary->column);
}

bool parquet_dictionary_decode(ParquetDictionary *dictionary, Error *error) {
    pthread_mutex_lock(&dictionary->lock);
    if (!dictionary->decoded) decode_dictionary(dictionary, &dictionary->fault);
    dictionary->decoded = true;
    parquet_page_free(&dictionary->page);
    pthread_mutex_unlock(&dictionary->lock);
    if (dictionary->fault.code) *error = dictionary->fault;
    return !dictionary->fault.code;
}

bool parquet_dictionary_is_shared(const ParquetDictionary *dictionary) {
    return __atomic_load_n(&dictionary->holders, __ATOMIC_RELAXED) > 1;
}

ParquetDictionary *parquet_dictionary_hold(ParquetDictionary *dictionary) {
    __atomic_add_fetch(&dictionary->holders, 1, __ATOMIC_RELAXED);
    return dictionary;
}

void parquet_dictionary_release(ParquetDictionary *dictionary) {
    if (!dictionary || __atomic_sub_fetch(&dictionary->holders, 1, __ATOMIC_ACQ_REL) > 0) return;
    parquet_page_free(&dictionary->page);
    pthread_mutex_destroy(&dictionary->lock);
    free(dictionary->column);
    free(dictionary->bytes);
    free(dictionary->offsets);
    free(dictionary);
}

/* Reads the bytes of the dictionary at column->at and replaces the column's previous one. */
static bool take_dictionary(ParquetColumn *column, const PageHeader *header, Error *error) {
    ParquetPage page;
    if (!load_page(column, header, &page, error)) return false;
    parquet_dictionary_release(column->dictionary);
    column->dictionary = memory_allocate(sizeof *column->dictionary);
    *column->dictionary = (ParquetDictionary){.size = (size_t)page.bytes,
        .count = (size_t)page.values,
        .holders = 1,
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .page = page,
        .column = memory_copy_string(column->node->name)};
    return true;
}

/* -- Columns --------------------------------------------------------------------------------------------------------- */

void parquet_column_start(ParquetColumn *column, const ParquetFile *file, const ParquetNode *leaf, int64_t group) {
    const ParquetChunk *chunk = parquet_chunk(file, group, leaf->leaf);
    column->file = file;
    column->node = leaf;
    column->codec = chunk->codec;
    column->at = chunk->offset;
    column->end = chunk->offset + chunk->bytes;
    column->values = chunk->values;
    parquet_dictionary_release(column->dictionary);
    column->dictionary = NULL;
}

bool parquet_column_page(ParquetColumn *column, ParquetPage *page, Error *error) {
    PageHeader header = {0};
    *page = (ParquetPage){0};
    while (column->values > 0 && !page->stored) {
        if (!read_page_header(column, &header, error) || !check_page(column, &header, error)) return false;
        bool data = header.type == PAGE_DATA || header.type == PAGE_DATA_V2;
        if (header.type == PAGE_DICTIONARY && !take_dictionary(column, &header, error)) return false;
        if (data && header.values > 0 && !load_page(column, &header, page, error)) return false;
        column->at += header.stored_bytes;
        column->values -= data ? header.values : 0;
    }
    return true;
}

void parquet_page_free(ParquetPage *page) {
    free(page->stored);
    page->stored = NULL;
}

void parquet_column_free(ParquetColumn *column) {
    free(column->window);
    parquet_dictionary_release(column->dictionary);
    *column = (ParquetColumn){0};
}
