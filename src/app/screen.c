/* Takes over the terminal and restores it. Interrupts stay signals, which the caller's handler
 * turns into a request to stop. Ctrl-Z is disabled, because the terminal would not be restored
 * before the program stops. Called by `smelt watch`. */
#include "app/screen.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"

/* Reads the terminal's size; returns whether it has changed. */
static bool read_size(Screen *screen) {
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    int columns = known ? size.ws_col : 80, rows = known ? size.ws_row : 24;
    bool changed = columns != screen->columns || rows != screen->rows;
    screen->columns = columns;
    screen->rows = rows;
    return changed;
}

bool screen_open(Screen *screen, Error *error) {
    const char *name = getenv("TERM");
    *screen = (Screen){0};
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !name || !strcmp(name, "dumb"))
        return error_set(
            error, ERROR_USAGE, "terminal=true needs a terminal with cursor control: use another terminal, or remove it to use a browser");
    if (tcgetattr(STDIN_FILENO, &screen->before) != 0) return error_set(error, ERROR_INTERNAL, "cannot read the terminal's settings");
    struct termios raw = screen->before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = raw.c_cc[VTIME] = 0;
    raw.c_cc[VSUSP] = _POSIX_VDISABLE;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    screen->open = true;
    fputs("\x1b[?1049h\x1b[?25l", stdout);
    read_size(screen);
    return true;
}

void screen_close(Screen *screen) {
    if (!screen->open) return;
    fputs("\x1b[?25h\x1b[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &screen->before);
    screen->open = false;
}

void screen_show(const char *lines) {
    fputs("\x1b[H", stdout);
    for (; *lines; lines++) {
        if (*lines == '\n') fputs("\x1b[K\r\n", stdout);
        else putchar(*lines);
    }
    fputs("\x1b[K\x1b[J", stdout);
    fflush(stdout);
}

int screen_wait(Screen *screen, double seconds, const StopRequest *stop) {
    const double slice = 0.1, end = log_seconds() + seconds;
    for (double left; stop->count == 0 && (left = end - log_seconds()) > 0;) {
        struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
        char key;
        if (poll(&input, 1, (int)ceil(1e3 * fmin(left, slice))) > 0) return read(STDIN_FILENO, &key, 1) == 1 ? key : 'q';
        if (read_size(screen)) return 0;
    }
    return 0;
}
