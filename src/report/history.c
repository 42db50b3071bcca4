/* Reads RUN/metrics.jsonl line by line into a History. The file's author is not trusted: lines that
 * are not JSON objects of a known kind, or whose step is out of order, are counted and ignored. All
 * arrays have a fixed size and are thinned. A History owns its path and the columns of its LoadMap.
 * Called by view.c. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/sort.h"
#include "base/strings.h"
#include "report/history_internal.h"

#define STEP_LIMIT 1e15 /* exact in a double, with room for arithmetic */

/* -- Thinning ---------------------------------------------------------------------------------------------------- */

/* Adds a record to an array of `limit` items (an even number) of `size` bytes. merge(to, next) adds
 * an item to its predecessor; NULL: the first one represents both. */
static void thin_add(
    Thinning *thin, void *items, size_t size, size_t limit, const void *record, void (*merge)(void *to, const void *next)) {
    char *bytes = items;
    if (thin->stride == 0) thin->stride = 1;
    if (thin->seen++ % thin->stride != 0) {
        if (merge) merge(bytes + (thin->count - 1) * size, record);
        return;
    }
    if (thin->count == limit) {
        for (size_t i = 0; i < limit / 2; i++) {
            memmove(bytes + i * size, bytes + 2 * i * size, size);
            if (merge) merge(bytes + i * size, bytes + (2 * i + 1) * size);
        }
        thin->count = limit / 2;
        thin->stride *= 2;
    }
    memcpy(bytes + thin->count++ * size, record, size);
}

static void marks_add(Marks *marks, Mark mark) {
    marks->last = mark;
    thin_add(&marks->thin, marks->items, sizeof mark, HISTORY_MARKS, &mark, NULL);
}

static void sample_add(Sample *sample, double value) {
    if (isfinite(value)) thin_add(&sample->thin, sample->items, sizeof value, HISTORY_SAMPLE, &value, NULL);
}

double sample_median(const Sample *sample) {
    if (sample->thin.count == 0) return NAN;
    SCOPED_FREE double *sorted = memory_allocate(sizeof sample->items);
    memcpy(sorted, sample->items, sizeof sample->items);
    return sort_median(sorted, (int64_t)sample->thin.count);
}

static void span_add(StepSpan *span, const StepSpan *more) {
    if (more->count == 0) return;
    span->low = span->count ? fmin(span->low, more->low) : more->low;
    span->high = span->count ? fmax(span->high, more->high) : more->high;
    span->sum += more->sum;
    span->count += more->count;
}

static void merge_points(void *to, const void *next) {
    Point *point = to;
    const Point *more = next;
    point->last = more->last;
    point->tokens = more->tokens;
    point->time = more->time;
    for (int i = 0; i < SERIES_COUNT; i++) span_add(&point->series[i], &more->series[i]);
}

size_t history_thinned(const History *history, size_t most, Point *points) {
    const size_t stride = (history->thin.count + most - 1) / most;
    size_t count = 0;
    for (size_t i = 0; i < history->thin.count; i++) {
        if (i % stride) merge_points(&points[count - 1], &history->points[i]);
        else points[count++] = history->points[i];
    }
    return count;
}

static void merge_columns(void *to, const void *next) {
    LoadColumn *column = to;
    const LoadColumn *more = next;
    for (int64_t cell = 0; cell < column->cells; cell++) column->sums[cell] += more->sums[cell];
}

/* -- Fields ------------------------------------------------------------------------------------------------------ */

static double number(const json_t *record, const char *name) {
    const json_t *value = json_object_get(record, name);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static StepSpan span_of(double value) { return isfinite(value) ? (StepSpan){value, value, value, 1} : (StepSpan){0}; }

/* -- Kinds of records -------------------------------------------------------------------------------------------- */

static bool add_step(History *history, const StepRecord *record) {
    const double *numbers = record->numbers, loss = numbers[SERIES_LOSS], at = numbers[STEP_NUMBER];
    if (!(at >= 1 && at <= STEP_LIMIT)) return false;
    int64_t step = (int64_t)at;
    if (step < history->from) return true;
    if (history->steps > 0 && step <= history->last_step) return false;
    if (history->steps++ == 0) history->first_step = step, history->first_time = numbers[STEP_TIME];
    history->last_step = step;
    Point point = {
        .first = step, .last = step, .tokens = numbers[STEP_TOKENS_SEEN], .time = numbers[STEP_TIME], .offset = history->place.offset};
    for (StepField i = 0; i < SERIES_MACHINE; i++) point.series[i] = span_of(numbers[i]);
    for (StepField i = SERIES_MACHINE; i < SERIES_COUNT; i++) point.series[i] = span_of(history->machine[i - SERIES_MACHINE]);
    thin_add(&history->thin, history->points, sizeof point, HISTORY_POINTS, &point, merge_points);
    if (record->skipped) marks_add(&history->skipped, (Mark){step, NAN, NAN});
    else if (!isfinite(loss)) marks_add(&history->broken, (Mark){step, NAN, NAN});
    if (isfinite(loss)) {
        history->last_loss = loss;
        history->recent[history->losses++ % HISTORY_RECENT] = loss;
    }
    sample_add(&history->speed, numbers[SERIES_SPEED]);
    sample_add(&history->tflops, numbers[STEP_TFLOPS]);
    sample_add(&history->peak_percent, numbers[STEP_PEAK_PERCENT]);
    sample_add(&history->best_percent, numbers[STEP_BEST_PERCENT]);
    if (numbers[STEP_MILLISECONDS] > 0) history->step_seconds += numbers[STEP_MILLISECONDS] * 1e-3;
    history->memory_bytes = fmax(history->memory_bytes, numbers[STEP_MEMORY]);
    history->tokens = fmax(history->tokens, numbers[STEP_TOKENS_SEEN]);
    if (history->start_count > 0) {
        RunStart *start = &history->starts[(history->start_count - 1) % HISTORY_STARTS];
        history->restarts += start->last_step == start->step;
        start->last_step = step;
    }
    return true;
}

static bool add_evaluation(History *history, int64_t step, const json_t *record) {
    const double tokens = number(record, "tokens");
    Mark mark = {step, number(record, "loss"), number(record, "bits_per_byte")};
    if (fabs(tokens - history->evaluated_tokens) > 0) history->best.value = NAN; /* losses over different data are not comparable */
    if (isfinite(mark.value) && !(history->best.value <= mark.value)) history->best = mark;
    marks_add(&history->evaluations, mark);
    history->evaluated_tokens = tokens;
    return true;
}

static bool add_sample(History *history, int64_t step, const json_t *record) {
    const char *prompt = json_string_value(json_object_get(record, "prompt")), *text = json_string_value(json_object_get(record, "text"));
    Excerpts *excerpts = &history->excerpts;
    if (!prompt || !text) return false;
    excerpts->last.step = step;
    copy_cut(excerpts->last.prompt, sizeof excerpts->last.prompt, prompt);
    copy_cut(excerpts->last.text, sizeof excerpts->last.text, text);
    thin_add(&excerpts->thin, excerpts->items, sizeof excerpts->last, HISTORY_EXCERPTS, &excerpts->last, NULL);
    return true;
}

static bool add_checkpoint(History *history, int64_t step, const json_t *record) {
    marks_add(&history->checkpoints, (Mark){step, number(record, "bytes"), number(record, "milliseconds") * 1e-3});
    return true;
}

static const char *const start_columns[] = {"kind", "step", "time", "machine", "parameters", "active_parameters"};

static bool has_column(const char *name) {
    for (size_t i = 0; i < sizeof start_columns / sizeof *start_columns; i++)
        if (strcmp(start_columns[i], name) == 0) return true;
    return false;
}

/* Writes "name value, name value" for all fields without a column. */
static void describe_record(char *text, size_t size, json_t *record) {
    SCOPED_FREE char *all = NULL;
    size_t length;
    FILE *stream = open_memstream(&all, &length);
    const char *name;
    json_t *value;
    json_object_foreach(record, name, value) {
        if (has_column(name)) continue;
        SCOPED_FREE char *shown = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(6));
        const char *plain = json_is_string(value) ? json_string_value(value) : shown;
        fprintf(stream, "%s%.100s %.*s", ftell(stream) > 0 ? ", " : "", name, (int)size, plain ? plain : "");
    }
    fclose(stream);
    copy_cut(text, size, all);
}

static bool add_start(History *history, int64_t step, json_t *record) {
    RunStart *start = &history->starts[history->start_count++ % HISTORY_STARTS];
    *start = (RunStart){step, step, number(record, "time"), number(record, "parameters"), number(record, "active_parameters"), "", ""};
    const char *machine = json_string_value(json_object_get(record, "machine"));
    copy_cut(start->machine, sizeof start->machine, machine ? machine : "unknown");
    describe_record(start->details, sizeof start->details, record);
    return true;
}

/* The best evaluation is a mark of its own. */
static bool add_notice(History *history, int64_t step, const json_t *record) {
    const char *event = json_string_value(json_object_get(record, "event")),
               *message = json_string_value(json_object_get(record, "message"));
    if (!event || !message) return false;
    if (strcmp(event, "best") == 0) return true;
    Notice *notice = &history->notices[history->notice_count++ % HISTORY_NOTICES];
    SCOPED_FREE char *text = memory_format("%s: %s", event, message);
    notice->step = step;
    copy_cut(notice->text, sizeof notice->text, text);
    return true;
}

typedef struct GpuTotals { double sum, highest; } GpuTotals; /* NaN: unknown */

static GpuTotals gpu_totals(const json_t *record, const char *name) {
    const json_t *list = json_object_get(record, name), *value;
    GpuTotals totals = {NAN, NAN};
    size_t i;
    json_array_foreach((json_t *)list, i, value) {
        if (!json_is_number(value)) continue;
        double one = json_number_value(value);
        totals.sum = isnan(totals.sum) ? one : totals.sum + one;
        totals.highest = fmax(totals.highest, one);
    }
    return totals;
}

/* A sample applies to the steps after it, until the next sample. */
static bool add_machine(History *history, const json_t *record) {
    const double gib = 1 << 30, megabyte = 1e6, joules = number(record, "joules");
    const json_t *gpus = json_object_get(record, "gpu_percent");
    double *const machine = history->machine;
    history->sampled_gpus = (int64_t)json_array_size(gpus);
    machine[SERIES_CPU - SERIES_MACHINE] = number(record, "cpu_percent");
    machine[SERIES_MACHINE_MEMORY - SERIES_MACHINE] = number(record, "machine_memory_bytes") / gib;
    machine[SERIES_DISK - SERIES_MACHINE] =
        (number(record, "disk_read_bytes_per_second") + number(record, "disk_written_bytes_per_second")) / megabyte;
    machine[SERIES_NETWORK - SERIES_MACHINE] =
        (number(record, "network_received_bytes_per_second") + number(record, "network_sent_bytes_per_second")) / megabyte;
    machine[SERIES_GPU - SERIES_MACHINE] = gpu_totals(record, "gpu_percent").sum / (double)history->sampled_gpus;
    machine[SERIES_WATTS - SERIES_MACHINE] = gpu_totals(record, "gpu_watts").sum;
    machine[SERIES_CELSIUS - SERIES_MACHINE] = gpu_totals(record, "gpu_celsius").highest;
    if (joules >= 0) history->joules = isnan(history->joules) ? joules : history->joules + joules;
    return true;
}

/* A phase that begins again replaces its earlier record and removes later phases. */
static bool add_phase_record(History *history, json_t *record) {
    size_t number = (size_t)json_integer_value(json_object_get(record, "phase"));
    size_t before = json_array_size(history->phases);
    if (!json_is_string(json_object_get(record, "name")) || number < 1 || number > before + 1 || number > HISTORY_PHASES) return false;
    if (!history->phases) history->phases = json_array();
    while (json_array_size(history->phases) >= number) json_array_remove(history->phases, json_array_size(history->phases) - 1);
    return json_array_append(history->phases, record) == 0;
}

static bool add_mixture(History *history, const json_t *record) {
    json_t *phases = json_object_get(record, "phases");
    if (!json_is_array(phases)) return false;
    json_decref(history->mixture);
    history->mixture = json_incref(phases);
    return true;
}

/* -- Expert load ------------------------------------------------------------------------------------------------- */

static bool is_load(const json_t *rows, int64_t *layers, int64_t *experts) {
    *layers = (int64_t)json_array_size(rows);
    *experts = (int64_t)json_array_size(json_array_get(rows, 0));
    if (*layers == 0 || *experts == 0) return false;
    size_t layer;
    json_t *row;
    json_array_foreach((json_t *)rows, layer, row) if ((int64_t)json_array_size(row) != *experts) return false;
    return true;
}

static void load_reset(LoadMap *map, int64_t layers, int64_t experts) {
    free(map->columns);
    *map = (LoadMap){.layers = layers, .experts = experts, .too_large = layers > HISTORY_CELLS / experts};
    if (!map->too_large) map->columns = memory_allocate((HISTORY_COLUMNS + 1) * load_column_bytes(map));
}

static bool add_map(LoadMap *map, int64_t step, const json_t *rows) {
    int64_t layers, experts;
    if (!is_load(rows, &layers, &experts)) return false;
    if (layers != map->layers || experts != map->experts) load_reset(map, layers, experts);
    if (map->too_large) return true;
    if (map->thin.seen > 0 && step <= map->last_step) return false;
    map->last_step = step;
    LoadColumn *column = load_column(map, HISTORY_COLUMNS);
    column->first = step;
    column->cells = layers * experts;
    for (int64_t cell = 0; cell < column->cells; cell++) {
        double part = json_number_value(json_array_get(json_array_get(rows, (size_t)(cell / experts)), (size_t)(cell % experts)));
        column->sums[cell] = part >= 0 && part <= 1 ? (float)part : 0;
    }
    thin_add(&map->thin, map->columns, load_column_bytes(map), HISTORY_COLUMNS, column, merge_columns);
    return true;
}

/* Returns the shares of a list of norms in their sum; the caller owns the reference. */
static json_t *shares_of(const json_t *norms) {
    json_t *shares = json_array(), *norm;
    double sum = 0;
    size_t i;
    json_array_foreach((json_t *)norms, i, norm) sum += fmax(0, json_number_value(norm));
    json_array_foreach((json_t *)norms, i, norm) json_array_append_new(shares, json_real(sum > 0 ? json_number_value(norm) / sum : 0));
    return shares;
}

static void add_bins(NormBins *bins, int64_t step, const json_t *histogram) {
    const json_t *tensors = json_object_get(histogram, "tensors"), *value;
    const json_int_t first = json_integer_value(json_object_get(histogram, "first")), most = 10000; /* of exponents */
    size_t i, count = json_array_size(tensors);
    if (!count || count > HISTORY_BINS || first < -most || first > most) return;
    *bins = (NormBins){.step = step, .first = (int)first, .count = (int)count};
    json_array_foreach((json_t *)tensors, i, value) bins->tensors[i] = json_integer_value(value) > 0 ? json_integer_value(value) : 0;
}

static bool add_norms(History *history, int64_t step, const json_t *record) {
    add_bins(&history->gradient_bins, step, json_object_get(record, "gradient_histogram"));
    add_bins(&history->weight_bins, step, json_object_get(record, "weight_histogram"));
    json_auto_t *rows = json_pack("[o, o]", shares_of(json_object_get(record, "gradient")), shares_of(json_object_get(record, "weight")));
    return add_map(&history->norms, step, rows);
}

/* -- The file ---------------------------------------------------------------------------------------------------- */

static bool add_record(History *history, json_t *record) {
    const char *kind = json_string_value(json_object_get(record, "kind"));
    double at = number(record, "step");
    if (kind && strcmp(kind, "step") == 0) {
        const StepRecord numbers = step_record_of(record);
        return add_step(history, &numbers);
    }
    if (!kind || !(at >= 0 && at <= STEP_LIMIT)) return false;
    int64_t step = (int64_t)at;
    if (strcmp(kind, "load") == 0) return add_map(&history->load, step, json_object_get(record, "load"));
    if (strcmp(kind, "layers") == 0) return add_norms(history, step, record);
    if (strcmp(kind, "evaluation") == 0) return add_evaluation(history, step, record);
    if (strcmp(kind, "sample") == 0) return add_sample(history, step, record);
    if (strcmp(kind, "checkpoint") == 0) return add_checkpoint(history, step, record);
    if (strcmp(kind, "start") == 0) return add_start(history, step, record);
    if (strcmp(kind, "phase") == 0) return add_phase_record(history, record);
    if (strcmp(kind, "mixture") == 0) return add_mixture(history, record);
    if (strcmp(kind, "system") == 0) return add_machine(history, record);
    if (strcmp(kind, "event") == 0) return add_notice(history, step, record);
    return strcmp(kind, "end") == 0; /* run_state_read reads it */
}

static bool add_metrics_line(History *history, const char *line, size_t length) {
    StepRecord step;
    if (step_record_scan(line, length, &step)) return add_step(history, &step);
    json_auto_t *record = json_loadb(line, length, 0, NULL);
    return json_is_object(record) && add_record(history, record);
}

static void history_clear(History *history, char *path) {
    *history = (History){.path = path, .last_loss = NAN, .best.value = NAN, .evaluated_tokens = NAN, .restarts = -1, .joules = NAN};
    for (size_t i = 0; i < sizeof history->machine / sizeof *history->machine; i++) history->machine[i] = NAN;
}

History *history_new(const char *path) {
    History *history = memory_allocate(sizeof *history);
    history_clear(history, memory_copy_string(path));
    return history;
}

static void release_records(History *history) {
    free(history->load.columns);
    free(history->norms.columns);
    json_decref(history->phases);
    json_decref(history->mixture);
}

static void forget_records(History *history) {
    release_records(history);
    history_clear(history, history->path);
}

static size_t tail_bytes(const RecordPlace *place) { return place->offset < HISTORY_TAIL ? (size_t)place->offset : HISTORY_TAIL; }

static bool read_tail(const RecordPlace *place, const File *file, char tail[HISTORY_TAIL], Error *error) {
    size_t bytes = tail_bytes(place);
    return file_read_at(file, tail, (int64_t)bytes, place->offset - (int64_t)bytes, error);
}

/* Returns whether `file` is the file that was read up to `place`, with the bytes before it
 * unchanged. */
static bool goes_on(const RecordPlace *place, const File *file, const struct stat *status) {
    char tail[HISTORY_TAIL];
    Error ignored = {0};
    return place->device == status->st_dev && place->number == status->st_ino && place->offset <= status->st_size &&
           read_tail(place, file, tail, &ignored) && memcmp(tail, place->tail, tail_bytes(place)) == 0;
}

/* Returns whether there was a line. A last line without a newline is read later, when it is
 * complete: the run may be writing it now. */
static bool read_lines(History *history, FileReader *reader) {
    int64_t before = history->lines;
    Progress progress = progress_start("reading metrics", "records", 0);
    for (FileLine line; (line = file_reader_next(reader)) == FILE_LINE_WHOLE || line == FILE_LINE_LONG; history->lines++) {
        history->ignored += line == FILE_LINE_LONG || !add_metrics_line(history, reader->line, reader->length);
        history->place.offset = line == FILE_LINE_LONG ? ftello(reader->stream) : history->place.offset + (int64_t)reader->length + 1;
        progress_update(&progress, history->lines);
    }
    progress_finish(&progress);
    return history->lines > before;
}

static bool read_on(History *history, FileReader *reader, bool *changed, Error *error) {
    struct stat status;
    RecordPlace *place = &history->place;
    if (fstat(reader->file.descriptor, &status) != 0) return file_fail(error, "read", history->path);
    if (!goes_on(place, &reader->file, &status)) {
        *changed = *changed || history->lines > 0;
        forget_records(history);
    }
    place->device = status.st_dev;
    place->number = status.st_ino;
    if (fseeko(reader->stream, place->offset, SEEK_SET) != 0) return file_fail(error, "read", history->path);
    if (read_lines(history, reader)) *changed = true;
    return read_tail(place, &reader->file, place->tail, error);
}

bool history_update(History *history, bool *changed, Error *error) {
    FileReader reader;
    if (!file_reader_open(&reader, history->path, error)) {
        if (error->finding == FINDING_ABSENT)
            return error_set(
                error, ERROR_CHECKPOINT, "%s does not exist: give the folder of a run, as in run=FOLDER of smelt train", history->path);
        return error_recode(error, ERROR_INTERNAL); /* code 7 is for files of a run that cannot be written (docs/exit-codes.md) */
    }
    bool good = read_on(history, &reader, changed, error);
    good = file_reader_close(&reader, error) && good;
    return good || error_recode(error, ERROR_INTERNAL);
}

History *history_range(const History *history, int64_t from, int64_t to) {
    FileReader reader;
    Error unread = {0};
    size_t first = 0;
    if (!file_reader_open(&reader, history->path, &unread)) return NULL;
    while (first + 1 < history->thin.count && history->points[first].last < from) first++;
    History *part = history_new(history->path);
    part->from = from;
    bool found = history->steps > 0 && fseeko(reader.stream, history->points[first].offset, SEEK_SET) == 0;
    for (FileLine line; found && part->last_step < to && ((line = file_reader_next(&reader)) == FILE_LINE_WHOLE || line == FILE_LINE_LONG);)
        if (line == FILE_LINE_WHOLE) add_metrics_line(part, reader.line, reader.length);
    part->first_time = history->first_time;
    if (file_reader_close(&reader, &unread)) return part;
    history_free(part);
    return NULL;
}

void history_free(History *history) {
    if (!history) return;
    release_records(history);
    free(history->path);
    free(history);
}

double history_recent_loss(const History *history, int64_t *steps) {
    *steps = history->losses < HISTORY_RECENT ? history->losses : HISTORY_RECENT;
    double sum = 0;
    for (int64_t i = 0; i < *steps; i++) sum += history->recent[i];
    return *steps ? sum / (double)*steps : NAN;
}
