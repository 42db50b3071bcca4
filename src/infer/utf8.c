/* A UTF-8 decoder that stops at every byte. The ranges of the second byte come from Unicode's table
 * of well-formed sequences. */
#include "infer/utf8.h"

#include <stdbool.h>
#include <string.h>

static int sequence_length(uint8_t first) {
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first < 0xe0) return 2;
    if (first >= 0xe0 && first < 0xf0) return 3;
    return first >= 0xf0 && first < 0xf5 ? 4 : 0;
}

static bool continues(const Utf8Stream *stream, uint8_t byte) {
    uint8_t low = 0x80, high = 0xbf, first = stream->held[0];
    if (stream->count == 1) {
        if (first == 0xe0) low = 0xa0;
        if (first == 0xed) high = 0x9f;
        if (first == 0xf0) low = 0x90;
        if (first == 0xf4) high = 0x8f;
    }
    return byte >= low && byte <= high;
}

static int replace_malformed(char *text) {
    memcpy(text, "\xef\xbf\xbd", 3);
    return 3;
}

int utf8_finish(Utf8Stream *stream, char text[UTF8_OUTPUT]) {
    int used = stream->count ? replace_malformed(text) : 0;
    stream->count = 0;
    return used;
}

int utf8_put(Utf8Stream *stream, uint8_t byte, char text[UTF8_OUTPUT]) {
    int used = stream->count && !continues(stream, byte) ? utf8_finish(stream, text) : 0;
    if (stream->count == 0 && sequence_length(byte) == 0) return used + replace_malformed(text + used);
    stream->held[stream->count++] = byte;
    if (stream->count < sequence_length(stream->held[0])) return used;
    memcpy(text + used, stream->held, stream->count);
    used += stream->count;
    stream->count = 0;
    return used;
}
