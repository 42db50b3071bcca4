/* Events of a run for the charts. The caller of page_events owns the list. Called by curves.c and points.c. */
#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/log.h"
#include "base/strings.h"
#include "report/page_internal.h"

void page_events_free(PageEvents *events) { free(events->items); }

__attribute__((format(printf, 4, 5))) static void add_event(
    PageEvents *events, int64_t step, const PageEvent *kind, const char *format, ...) {
    array_append(events->items, events->count, *kind);
    PageEvent *event = &events->items[events->count - 1];
    va_list arguments;
    va_start(arguments, format);
    event->step = step;
    vsnprintf(event->text, sizeof event->text, format, arguments);
    va_end(arguments);
}

static void add_starts(PageEvents *events, const History *history) {
    static const PageEvent kind = {.style = "start", .to = 1};
    int64_t oldest = history->start_count > HISTORY_STARTS ? history->start_count - HISTORY_STARTS : 0;
    for (int64_t i = oldest; i < history->start_count; i++) {
        const RunStart *start = &history->starts[i % HISTORY_STARTS];
        if (start->step < history->first_step || start->last_step == start->step) continue;
        add_event(events, start->step, &kind, "process %lld started after step %lld", (long long)i + 1, (long long)start->step);
    }
}

/* Adds the beginnings of a mixture's phases, except the first. */
static void add_phases(PageEvents *events, const History *history) {
    static const PageEvent kind = {.style = "phase", .to = 1};
    size_t i;
    json_t *phase;
    json_array_foreach(history->phases, i, phase) {
        int64_t step = json_integer_value(json_object_get(phase, "step"));
        if (step == 0 || step < history->first_step) continue;
        add_event(events, step, &kind, "phase %zu, %.40s, begins after step %lld: sequences of %lld tokens", i + 1,
            json_string_value(json_object_get(phase, "name")), (long long)step,
            (long long)json_integer_value(json_object_get(phase, "length")));
    }
}

static void add_changes(PageEvents *events, const RunView *view) {
    static const PageEvent kind = {.style = "change", .to = 1};
    json_auto_t *changes = view_changes(view);
    size_t i;
    json_t *one;
    json_array_foreach(changes, i, one) {
        int64_t first = json_integer_value(json_object_get(one, "first"));
        add_event(events, first, &kind, "from step %lld on: %s", (long long)first, json_string_value(json_object_get(one, "change")));
    }
}

static void add_notices(PageEvents *events, const History *history) {
    static const PageEvent alarm = {.style = "bad", .from = 0.9, .to = 1}, warning = {.style = "warn", .from = 0.95, .to = 1};
    int64_t oldest = history->notice_count > HISTORY_NOTICES ? history->notice_count - HISTORY_NOTICES : 0;
    for (int64_t i = oldest; i < history->notice_count; i++) {
        const Notice *notice = &history->notices[i % HISTORY_NOTICES];
        add_event(events, notice->step, starts_with(notice->text, "warning: ") ? &warning : &alarm, "step %lld: %s",
            (long long)notice->step, notice->text);
    }
}

static void add_bad_steps(PageEvents *events, const Marks *marks, const char *what) {
    static const PageEvent kind = {.style = "bad", .from = 0.95, .to = 1};
    for (size_t i = 0; i < marks->thin.count; i++)
        add_event(events, marks->items[i].step, &kind, "step %lld: %s", (long long)marks->items[i].step, what);
}

static bool is_checkpoint_kept(const RunView *view, int64_t step) {
    bool kept = !view->knows_kept;
    for (size_t i = 0; i < view->kept_count && !kept; i++) kept = view->kept[i] == step;
    return kept;
}

static void add_checkpoints(PageEvents *events, const RunView *view) {
    enum { STROKES = 100 }; /* more would touch each other */
    static const PageEvent there = {.style = "check", .to = 0.05}, gone = {.style = "gone", .to = 0.05};
    const Marks *marks = &view->history->checkpoints;
    for (size_t i = 0; i < marks->thin.count; i += marks->thin.count / STROKES + 1) {
        const Mark *mark = &marks->items[i];
        char size[32], duration[32];
        log_format_bytes(mark->value, size);
        log_format_duration(mark->other, duration);
        bool known = isfinite(mark->value); /* NaN for a checkpoint whose process was killed before it wrote the record */
        bool kept = is_checkpoint_kept(view, mark->step);
        add_event(events, mark->step, kept ? &there : &gone, "step %lld: checkpoint%s%s%s%s%s", (long long)mark->step, known ? ", " : "",
            known ? size : "", known ? " in " : "", known ? duration : "", kept ? "" : ", removed since");
    }
}

PageEvents page_events(const RunView *view) {
    PageEvents events = {0};
    add_starts(&events, view->history);
    add_phases(&events, view->history);
    add_changes(&events, view);
    add_checkpoints(&events, view);
    add_notices(&events, view->history);
    add_bad_steps(&events, &view->history->skipped, "the update was skipped");
    add_bad_steps(&events, &view->history->broken, "the loss was not finite");
    return events;
}
