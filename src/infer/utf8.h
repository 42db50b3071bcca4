/* Makes bytes that arrive one by one printable: complete characters are output, incomplete ones are
 * held back, and invalid UTF-8 becomes U+FFFD, one per maximal broken part (Unicode 15, section
 * 3.9). */
#pragma once

#include <stdint.h>

enum { UTF8_OUTPUT = 8 }; /* maximum bytes of one call */

/* Zero-initialize. */
typedef struct Utf8Stream {
    uint8_t held[4];
    int count;
} Utf8Stream;

/* Takes one byte; writes complete characters to `text` and returns their bytes. */
int utf8_put(Utf8Stream *stream, uint8_t byte, char text[UTF8_OUTPUT]);
/* Ends the stream: bytes that are still held back become U+FFFD. */
int utf8_finish(Utf8Stream *stream, char text[UTF8_OUTPUT]);
