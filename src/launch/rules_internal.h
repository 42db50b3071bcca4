/* The rules of the supervisor: a table of (event, condition, action). */
#pragma once

#include <stdbool.h>

#include "launch/launch.h"

typedef enum Event {
    EVENT_EXIT,   /* a rank ended with exit code `value` */
    EVENT_SIGNAL, /* a rank was ended by signal `value` */
    EVENT_HANG,   /* a rank showed no sign of life for options->hang seconds */
    EVENT_STOP_LINE,
    EVENT_RESTART_LINE, /* a line of output matched options->stop_on, restart_on */
} Event;

typedef enum Action {
    ACTION_NONE,
    ACTION_STOP,
    ACTION_RESTART,
    ACTION_RESTART_SKIPPING, /* with on_nan=skip */
    ACTION_TEST_AND_RESTART, /* hardware may be the cause: the node is tested first */
} Action;

typedef struct Rule {
    Event event;
    int value;                                       /* ANY: all values */
    bool (*condition)(const LaunchOptions *options); /* NULL: always */
    Action action;
    const char *meaning; /* completes "rank 3 ..." */
} Rule;
enum { ANY = -1 };

/* Returns the first rule that matches; never NULL, because the last rule of every event has neither
 * value nor condition. Rules are ordered from causes to effects: if several ranks ended, the one
 * with the earliest rule decides. */
const Rule *rules_find(Event event, int value, const LaunchOptions *options);
