/* The terminal as an exclusive screen: the alternate screen, without cursor and echo. */
#pragma once

#include <stdbool.h>
#include <termios.h>

#include "base/error.h"
#include "base/stop.h"

typedef struct Screen {
    struct termios before;
    bool open;
    int columns, rows;
} Screen;

/* Opens the screen on standard input and output, which must be a terminal; otherwise
 * ERROR_USAGE. */
bool screen_open(Screen *screen, Error *error);
/* Restores the terminal; also for a zeroed screen. */
void screen_close(Screen *screen);
/* Shows these lines instead of all others. */
void screen_show(const char *lines);
/* Waits up to `seconds` for a key, a change of the terminal's size, or a stop request. Returns the
 * key; 0: none. */
int screen_wait(Screen *screen, double seconds, const StopRequest *stop);
