/* The table of rules. docs/exit-codes.md says what each exit code means. Owns nothing. Called by the supervisor. */
#include "launch/rules_internal.h"

#include <signal.h>
#include <stddef.h>

static bool nan_is_skipped(const LaunchOptions *options) { return options->on_nan == LAUNCH_NAN_SKIP; }

static const Rule rules[] = {
    {EVENT_STOP_LINE, ANY, NULL, ACTION_STOP, "printed a line that matches stop_on"},
    {EVENT_RESTART_LINE, ANY, NULL, ACTION_TEST_AND_RESTART, "printed a line that matches restart_on"},
    {EVENT_EXIT, ERROR_USAGE, NULL, ACTION_STOP, "rejected its settings"},
    {EVENT_EXIT, ERROR_DATA, NULL, ACTION_STOP, "found its data missing or damaged"},
    {EVENT_EXIT, ERROR_MEMORY, NULL, ACTION_STOP, "ran out of memory"},
    {EVENT_EXIT, ERROR_CHECKPOINT, NULL, ACTION_STOP, "cannot read or write checkpoints"},
    {EVENT_EXIT, ERROR_NUMERICS, nan_is_skipped, ACTION_RESTART_SKIPPING, "met NaN or infinity"},
    {EVENT_EXIT, ERROR_NUMERICS, NULL, ACTION_STOP, "met NaN or infinity"},
    {EVENT_EXIT, 127, NULL, ACTION_STOP, "could not be started"},
    {EVENT_SIGNAL, SIGKILL, NULL, ACTION_RESTART, "was killed"},
    {EVENT_SIGNAL, ANY, NULL, ACTION_TEST_AND_RESTART, "was killed"},
    {EVENT_HANG, ANY, NULL, ACTION_TEST_AND_RESTART, "hung"},
    {EVENT_EXIT, ERROR_DEVICE, NULL, ACTION_TEST_AND_RESTART, "lost its GPU"},
    {EVENT_EXIT, ERROR_COMMUNICATION, NULL, ACTION_TEST_AND_RESTART, "lost another rank, or was ended by its watchdog"},
    {EVENT_EXIT, ERROR_PREEMPTED, NULL, ACTION_STOP, "received a request to stop"},
    {EVENT_EXIT, ERROR_NONE, NULL, ACTION_NONE, "is done"},
    {EVENT_EXIT, ANY, NULL, ACTION_RESTART, "failed"},
};

const Rule *rules_find(Event event, int value, const LaunchOptions *options) {
    const Rule *rule = rules;
    while (rule->event != event || (rule->value != ANY && rule->value != value) || (rule->condition && !rule->condition(options))) rule++;
    return rule;
}
