/* Alarms: what happens in a run that a person wants to know at once. Each event is one JSON object on one line,
 *
 *     {"event": "loss_spike", "run": "/runs/a", "host": "node3", "step": 1200, "steps": 5000, "time": 1796071128.8,
 *      "message": "loss 9.1 is 12 standard deviations above 2.4", "suppressed": 0, "text": "/runs/a, step 1200: loss_spike: ..."}
 *
 * given to the command on_event= on stdin, or posted if it is an address, by a thread: training never waits for it, and its failures are warnings.
 * Events of a kind follow each other after a minute at the earliest; `suppressed` counts those in between. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "config/config.h"

/* EVENT(NAME, "name"). RUN_EVENT_END has the name of the run's state, such as "finished". */
#define RUN_EVENT_LIST(EVENT)                      \
    EVENT(LOSS_SPIKE, "loss_spike")                \
    EVENT(NAN, "nan")                              \
    EVENT(STUCK, "stuck")                          \
    EVENT(SLOW_RANK, "slow_rank")                  \
    EVENT(CHECKPOINT_FAILED, "checkpoint_failed")  \
    EVENT(DISK, "disk")                            \
    EVENT(BEST, "best")                            \
    EVENT(END, NULL)
#define RUN_EVENT_ENUM(NAME, name) RUN_EVENT_##NAME,
typedef enum RunEventKind { RUN_EVENT_LIST(RUN_EVENT_ENUM) RUN_EVENT_KINDS } RunEventKind;

typedef struct EventQueue EventQueue;

/* `config` must outlive the events. ERROR_INTERNAL; ERROR_USAGE without libcurl for an address. */
EventQueue *events_open(const Config *config, Error *error);
const char *events_name(RunEventKind kind);
/* Notes that step `step` has ended. Without another call for `patience` seconds the run is stuck; INFINITY: never. */
void events_alive(EventQueue *events, int64_t step, double patience);
/* Sends an event, unless one of its kind was sent within a minute; returns whether it was sent. `name`: of RUN_EVENT_END,
 * else NULL. NULL events are fine, like in events_alive. */
bool events_send(EventQueue *events, RunEventKind kind, const char *name, int64_t step, const char *message);
/* Delivers what was sent, for half a minute at most, and frees the events. NULL is fine. */
void events_close(EventQueue *events);
