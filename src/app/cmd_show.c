/* `smelt show RUN`: the identity of a run, its origin, when it started and continued, and its
 * checkpoints. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "app/command.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/wrap.h"
#include "ckpt/ckpt.h"
#include "config/config.h"
#include "run/lineage.h"
#include "run/run.h"
#include "run/run_state.h"

typedef struct ShowOptions { bool json; } ShowOptions;

#define FIELD(name) offsetof(ShowOptions, name)
static const Option rows[] = {
    BOOL_OPTION(json, "false", "print RUN/run.json, the state, the checkpoints and their store as JSON"),
};
static const OptionTable table = OPTION_TABLE(rows);

/* Returns [{"step": 40, "parent": 20, "loss": 1.9}, ...], newest first; a damaged one has an
 * "error". NULL on failure. */
static json_t *read_checkpoints(const char *where, Error *error) {
    SCOPED_FREE int64_t *steps = NULL;
    size_t count = 0;
    if (!checkpoint_list(where, &steps, &count, error)) return NULL;
    json_t *list = json_array();
    for (size_t i = 0; i < count; i++) {
        Error damage = {0};
        json_auto_t *metadata = checkpoint_metadata(where, steps[i], &damage);
        json_array_append_new(
            list, json_pack("{s:I, s:O*, s:o*, s:s*, s:s*}", "step", (json_int_t)steps[i], "parent", json_object_get(metadata, "parent"),
                      "loss", json_real(lineage_loss(metadata)), "run",
                      metadata ? lineage_number(json_object_get(metadata, "identity")) : NULL, "error", metadata ? NULL : damage.message));
    }
    return list;
}

/* Adds "best": true to the checkpoint of RUN@best. */
static void mark_best(const char *run, const Config *config, json_t *checkpoints) {
    RunPoint best = {(char *)run, RUN_BEST};
    Error none = {0};
    int64_t step;
    size_t index;
    json_t *one;
    json_auto_t *metadata = lineage_at(&best, config, &step, &none);
    json_array_foreach(checkpoints, index, one) if (metadata && json_integer_value(json_object_get(one, "step")) == step)
        json_object_set_new(one, "best", json_true());
}

static const char *text_in(const json_t *object, const char *name, const char *absent) {
    const char *text = json_string_value(json_object_get(object, name));
    return text && *text ? text : absent;
}

/* Prints a setting for data, tokenizer or initial weights, with its content if known. */
static void print_given(const json_t *identity, const char *name, const char *label, FILE *out) {
    SCOPED_FREE char *content = memory_format("%s.content", name);
    const char *is = text_in(identity, content, ""), *given = text_in(identity, name, "");
    if (*is || *given) fprintf(out, "  %-15s %s%s%s\n", label, given, *given && *is ? ": " : "", is);
}

/* Prints the sources and phases of a mixture. The identity calls them data.train.source.NAME and
 * data.train.phase.N. */
static void print_mixture_identity(json_t *identity, FILE *out) {
    static const char data[] = "data.train.";
    const char *name;
    json_t *value;
    json_object_foreach(identity, name, value) {
        const char *label = starts_with(name, data) ? name + sizeof data - 1 : "", *dot = strchr(label, '.');
        bool part = starts_with(label, "source.") || starts_with(label, "phase.");
        if (part && !strchr(dot + 1, '.')) print_given(identity, name, label, out);
    }
}

static void print_identity(const char *run, json_t *identity, FILE *out) {
    static const char *const names[] = {"data.valid", "data.tokenizer", "init"};
    fprintf(out, "%s\n  run             %s\n  version         %s\n", run, text_in(identity, "run", "unknown"),
        text_in(identity, "version", "unknown"));
    print_given(identity, "data.train", "data.train", out);
    print_mixture_identity(identity, out);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) print_given(identity, names[i], names[i], out);
}

static void print_state(const RunState *state, FILE *out) {
    char state_text[RUN_STATE_TEXT];
    run_state_describe(state, log_unix_seconds(), state_text);
    fprintf(out, "  state           %s\n", state_text);
}

static void print_fork(const json_t *fork, FILE *out) {
    if (fork)
        fprintf(out, "  forked from     %s after step %lld: run %s\n", text_in(fork, "folder", "unknown"),
            (long long)json_integer_value(json_object_get(fork, "step")), text_in(fork, "run", "unknown"));
}

static void print_history(const json_t *history, FILE *out) {
    size_t index, line;
    json_t *start, *change;
    fprintf(out, "\nhistory\n");
    json_array_foreach(history, index, start) {
        json_int_t step = json_integer_value(json_object_get(start, "step"));
        char what[64];
        json_t *next = json_array_get(history, index + 1);
        bool idle = next && json_integer_value(json_object_get(next, "step")) == step; /* it was killed, or was complete already */
        snprintf(what, sizeof what, step ? "continued after step %lld" : "started", (long long)step);
        fprintf(out, "  %s  %-28s version %s, %s\n", text_in(start, "time", "unknown"), what, text_in(start, "version", "unknown"),
            text_in(start, "machine", "unknown"));
        json_int_t ranks = json_integer_value(json_object_get(start, "ranks"));
        if (ranks) fprintf(out, "    %lld rank%s of %s\n", (long long)ranks, plural(ranks), text_in(start, "device", "unknown"));
        if (idle) fprintf(out, "    no step of this start was kept\n");
        json_array_foreach(json_object_get(start, "changes"), line, change) fprintf(out, "    changed: %s\n", json_string_value(change));
    }
}

/* Prints the checkpoints. `gone` is empty unless checkpoints that the run saved are missing. */
static void print_checkpoints(const char *where, const json_t *checkpoints, const char *gone, FILE *out) {
    size_t index;
    json_t *one;
    fprintf(out, "\ncheckpoints in %s\n", where);
    if (*gone) fprintf(out, "  none: %s\n", gone);
    json_array_foreach(checkpoints, index, one) {
        json_int_t parent = json_integer_value(json_object_get(one, "parent"));
        const char *damage = text_in(one, "error", NULL);
        fprintf(out, "  step %lld", (long long)json_integer_value(json_object_get(one, "step")));
        if (damage) fprintf(out, ": %s", damage);
        else if (parent) fprintf(out, ", after that of step %lld", (long long)parent);
        else fprintf(out, ", the first");
        if (json_object_get(one, "loss")) fprintf(out, ", validation loss %.5f", json_real_value(json_object_get(one, "loss")));
        fprintf(out, json_object_get(one, "best") ? ", the best\n" : "\n");
    }
}

static bool run_show_command(Invocation *invocation, Error *error) {
    const char *folder = invocation->words[0];
    Config config;
    if (!run_read_config(folder, &config, &invocation->strings, error)) return false;
    const char *where = run_checkpoints(folder, &config);
    json_auto_t *record = lineage_read(folder, error), *checkpoints = record ? read_checkpoints(where, error) : NULL;
    if (!checkpoints) return false;
    Error gone = {0};
    if (json_array_size(checkpoints) > 0) mark_best(folder, &config, checkpoints);
    else lineage_check_never_saved(folder, &config, &gone);
    SCOPED(run_state_free) RunState state = run_state_read(folder, &config, log_unix_seconds());
    if (((const ShowOptions *)invocation->options)->json) {
        json_object_set(record, "checkpoints", checkpoints);
        json_object_set_new(record, "store", json_string(where));
        json_object_set_new(record, "state",
            json_pack("{s:s, s:I, s:I, s:s}", "status", run_status_name(state.status), "step", (json_int_t)state.step, "steps",
                (json_int_t)state.steps, "message", state.message));
        json_dumpf(record, stdout, JSON_INDENT(1) | JSON_ENSURE_ASCII);
        putchar('\n');
        return true;
    }
    SCOPED_FREE char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) return error_set(error, ERROR_MEMORY, "no memory to show %s: free some memory", folder);
    print_identity(folder, json_object_get(record, "identity"), out);
    print_state(&state, out);
    print_fork(json_object_get(record, "fork"), out);
    print_history(json_object_get(record, "history"), out);
    print_checkpoints(where, checkpoints, gone.message, out);
    fclose(out);
    blank_controls(text, '?', true); /* files of a run may contain any bytes */
    wrap_lines(stdout, text, wrap_columns(STDOUT_FILENO));
    return true;
}

const Command command_show = {
    .name = "show",
    .summary = "show the origin and history of a run",
    .words = "RUN",
    .explanation =
        "Shows which run a folder contains: its number, data, tokenizer and initial weights by their content; each start with the\n"
        "settings that it changed; and each checkpoint with its predecessor\n"
        "and its validation loss.\n",
    .table = &table,
    .options_size = sizeof(ShowOptions),
    .run = run_show_command,
};
