/* The terminal as a screen that the program has to itself: the alternate screen, without cursor and echo. */
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

/* Of standard input and output, which must be a terminal: else ERROR_USAGE. */
bool screen_open(Screen *screen, Error *error);
/* Leaves the terminal as it was; also of a zeroed one. */
void screen_close(Screen *screen);
/* Shows these lines in place of all others. */
void screen_show(const char *lines);
/* Waits for so long, for a key or another size of the terminal, or until a stop is asked for. Returns the key; 0: none. */
int screen_wait(Screen *screen, double seconds, const StopRequest *stop);
