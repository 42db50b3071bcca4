/* Bytes that arrive one by one, made fit for a terminal: complete characters come out, incomplete ones are held
 * back, and what is not UTF-8 becomes U+FFFD, one per maximal broken part (Unicode 15, section 3.9). */
#pragma once

#include <stdint.h>

enum { UTF8_OUTPUT = 8 }; /* bytes that one call can give */

/* Zero-initialise. */
typedef struct Utf8Stream {
    uint8_t held[4];
    int count;
} Utf8Stream;

/* Takes one byte; writes what is complete to `text` and returns how many bytes that is. */
int utf8_put(Utf8Stream *stream, uint8_t byte, char text[UTF8_OUTPUT]);
/* The end: what is still held back becomes U+FFFD. */
int utf8_finish(Utf8Stream *stream, char text[UTF8_OUTPUT]);
