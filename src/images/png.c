/* Writes PNG (ISO/IEC 15948) without filters, compressed by zlib. Owns nothing. Called by `smelt generate`. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "images/png.h"

/* A file in memory. */
typedef struct PngBytes {
    unsigned char *data;
    size_t count;
} PngBytes;

static void bytes_free(PngBytes *bytes) { free(bytes->data); }

static void append_png(PngBytes *bytes, const void *data, size_t count) {
    bytes->data = memory_resize(bytes->data, bytes->count + count);
    if (count) memcpy(bytes->data + bytes->count, data, count);
    bytes->count += count;
}

static void put_number(unsigned char to[4], uint32_t number) {
    for (int i = 0; i < 4; i++) to[i] = (unsigned char)(number >> (24 - 8 * i));
}

/* Appends length, name, data, and the CRC of name and data. */
static void append_chunk(PngBytes *bytes, const char name[4], const void *data, size_t count) {
    unsigned char number[4];
    put_number(number, (uint32_t)count);
    append_png(bytes, number, sizeof number);
    size_t begin = bytes->count;
    append_png(bytes, name, 4);
    append_png(bytes, data, count);
    put_number(number, (uint32_t)crc32(0, bytes->data + begin, (uInt)(bytes->count - begin)));
    append_png(bytes, number, sizeof number);
}

enum { GAP = 1, GAP_LEVEL = 128 }; /* pixels between pictures */

/* The positions of the pictures. */
typedef struct Sheet {
    int64_t channels, columns, cell_height, cell_width, height, width;
    unsigned char *lines; /* [height, 1 + width x channels]: each line begins with its filter number, 0 */
} Sheet;

static unsigned char level(float value) { return (unsigned char)lround(fmin(fmax((value + 1) * 127.5, 0), 255)); }

static void draw_picture(const Sheet *sheet, const Picture *picture, int64_t index) {
    int64_t top = index / sheet->columns * (sheet->cell_height + GAP), left = index % sheet->columns * (sheet->cell_width + GAP);
    int64_t stride = 1 + sheet->width * sheet->channels;
    for (int64_t c = 0; c < picture->channels; c++)
        for (int64_t y = 0; y < picture->height; y++)
            for (int64_t x = 0; x < picture->width; x++)
                sheet->lines[(top + y) * stride + 1 + (left + x) * sheet->channels + c] =
                    level(picture->pixels[(c * picture->height + y) * picture->width + x]);
}

static Sheet lay_out_sheet(const Picture *pictures, int64_t count, int64_t columns) {
    Sheet sheet = {.channels = pictures[0].channels, .columns = int_min(columns, count)};
    for (int64_t i = 0; i < count; i++) {
        sheet.cell_height = int_max(sheet.cell_height, pictures[i].height);
        sheet.cell_width = int_max(sheet.cell_width, pictures[i].width);
    }
    sheet.height = divide_up(count, sheet.columns) * (sheet.cell_height + GAP) - GAP;
    sheet.width = sheet.columns * (sheet.cell_width + GAP) - GAP;
    return sheet;
}

static const unsigned char signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

bool png_is_file(const char *path) { return file_begins(path, (const char *)signature, sizeof signature); }

static bool write_sheet(const char *path, const Sheet *sheet, size_t bytes, Error *error) {
    enum { GRAY = 0, RED_GREEN_BLUE = 2, DEPTH = 8 };
    unsigned char header[13] = {[8] = DEPTH, [9] = sheet->channels == 1 ? GRAY : RED_GREEN_BLUE};
    uLongf packed_bytes = compressBound((uLong)bytes);
    SCOPED_FREE unsigned char *packed = memory_allocate(packed_bytes);
    SCOPED(bytes_free) PngBytes file = {0};
    if (compress(packed, &packed_bytes, sheet->lines, (uLong)bytes) != Z_OK)
        return error_set(error, ERROR_INTERNAL, "%s: zlib cannot compress %zu bytes of pixels", path, bytes);
    put_number(header, (uint32_t)sheet->width);
    put_number(header + 4, (uint32_t)sheet->height);
    append_png(&file, signature, sizeof signature);
    append_chunk(&file, "IHDR", header, sizeof header);
    append_chunk(&file, "IDAT", packed, packed_bytes);
    append_chunk(&file, "IEND", NULL, 0);
    return file_write(path, file.data, (int64_t)file.count, error);
}

bool png_write(const char *path, const Picture *pictures, int64_t count, int64_t columns, Error *error) {
    const int64_t most = 1 << 30; /* bytes: a chunk's length has 31 bits, and pixels may not compress */
    Sheet sheet = lay_out_sheet(pictures, count, columns);
    int64_t bytes = sheet.height * (1 + sheet.width * sheet.channels);
    if (bytes > most)
        return error_set(error, ERROR_USAGE, "%s: an image of %lld x %lld pixels is too large: make fewer or smaller images", path,
            (long long)sheet.width, (long long)sheet.height);
    sheet.lines = memset(memory_allocate((size_t)bytes), GAP_LEVEL, (size_t)bytes);
    for (int64_t y = 0; y < sheet.height; y++) sheet.lines[y * (1 + sheet.width * sheet.channels)] = 0;
    for (int64_t i = 0; i < count; i++) draw_picture(&sheet, &pictures[i], i);
    bool written = write_sheet(path, &sheet, (size_t)bytes, error);
    free(sheet.lines);
    return written;
}
