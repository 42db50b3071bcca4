/* Results of a benchmark: rows of cells, printed immediately, written as CSV and JSON after all
 * measurements. Every CSV row names the machine, so that files of several machines can be joined;
 * JSON names it once, with the settings. Owns the rows of a Bench. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "bench/bench.h"
#include "run/run.h"

/* -- Rows ---------------------------------------------------------------------------------------------------------- */

static void print_header(const BenchResults *results) {
    for (int i = 0; i < results->column_count; i++) {
        const BenchColumn *column = &results->columns[i];
        printf(column->decimals == BENCH_TEXT ? "%-*s " : "%*s ", column->width, column->name);
    }
    putchar('\n');
}

static void print_cell(const BenchColumn *column, const BenchCell *cell) {
    if (cell->text) printf("%-*s ", column->width, cell->text);
    else if (!isfinite(cell->number)) printf("%*s ", column->width, "unknown");
    else printf("%*.*f ", column->width, column->decimals > 0 ? column->decimals : 0, cell->number);
}

void bench_row(Bench *bench, const BenchCell *cells) {
    BenchResults *results = &bench->results;
    int count = results->column_count;
    results->cells = memory_resize(results->cells, (size_t)(results->row_count + 1) * (size_t)count * sizeof *cells);
    BenchCell *row = results->cells + results->row_count++ * count;
    for (int i = 0; i < count; i++)
        row[i] = (BenchCell){.text = cells[i].text ? memory_copy_string(cells[i].text) : NULL, .number = cells[i].number};
    if (bench->silent) return;
    if (results->row_count == 1) print_header(results);
    for (int i = 0; i < count; i++) print_cell(&results->columns[i], &row[i]);
    putchar('\n');
    fflush(stdout);
}

void bench_free_results(Bench *bench) {
    BenchResults *results = &bench->results;
    for (int i = 0; i < results->row_count * results->column_count; i++) free((char *)results->cells[i].text);
    free(results->cells);
    *results = (BenchResults){0};
}

int bench_column(const BenchResults *results, const char *name) {
    int i = 0;
    while (strcmp(results->columns[i].name, name)) i++;
    return i;
}

/* -- The machine --------------------------------------------------------------------------------------------------- */

/* The description of the machine in every result, without user names or addresses. */
typedef struct Machine {
    char *cpu; /* owned */
    const char *device, *host;
    struct utsname system;
    char time[32];
} Machine;

static void free_machine(Machine *machine) { free(machine->cpu); }

static bool has_gpu(const Bench *bench) { return bench->device && !device_info(bench->device)->host_memory; }

static void fill_machine(Machine *machine, const Bench *bench) {
    time_t now = time(NULL);
    struct tm parts;
    *machine = (Machine){.cpu = run_describe_machine(), .device = has_gpu(bench) ? device_info(bench->device)->name : "cpu"};
    bool named = uname(&machine->system) == 0;
    machine->host = named ? machine->system.nodename : "unknown";
    if (!named) strcpy(machine->system.release, "unknown");
    strftime(machine->time, sizeof machine->time, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
}

/* -- CSV ----------------------------------------------------------------------------------------------------------- */

static void write_csv_text(FILE *file, const char *text) {
    bool quoted = strpbrk(text, ",\"\n\r");
    if (quoted) putc('"', file);
    for (; *text; text++) {
        if (*text == '"') putc('"', file);
        putc(*text, file);
    }
    if (quoted) putc('"', file);
}

static const char csv_names[] = "benchmark,device,cpu,threads,host,time\n";

bool bench_is_csv(const char *path) {
    char start[4096];
    if (file_kind(path, NULL) != FILE_REGULAR || file_read_start(path, start, sizeof start) <= 0) return false;
    const char *found = strstr(start, csv_names), *line = strchr(start, '\n');
    return found && line && found < line;
}

/* Unknown numbers are empty. */
static void write_csv(const Bench *bench, const Machine *machine, FILE *file) {
    const BenchResults *results = &bench->results;
    char threads[16];
    snprintf(threads, sizeof threads, "%d", omp_get_max_threads());
    const char *names[] = {bench->benchmark->name, machine->device, machine->cpu, threads, machine->host, machine->time};
    enum { NAMES = sizeof names / sizeof *names };
    for (int i = 0; i < results->column_count; i++) fprintf(file, "%s,", results->columns[i].name);
    fputs(csv_names, file);
    for (int row = 0; row < results->row_count; row++) {
        for (int i = 0; i < results->column_count; i++) {
            const BenchCell *cell = &results->cells[row * results->column_count + i];
            if (cell->text) write_csv_text(file, cell->text);
            else if (isfinite(cell->number)) fprintf(file, "%.9g", cell->number);
            putc(',', file);
        }
        for (int i = 0; i < NAMES; i++) {
            write_csv_text(file, names[i]);
            putc(i + 1 < NAMES ? ',' : '\n', file);
        }
    }
}

/* -- JSON ---------------------------------------------------------------------------------------------------------- */

/* Returns a sysconf value, which is not positive if it is unknown. */
static json_t *system_number(int name, double unit) {
    double number = (double)sysconf(name) * unit;
    return number > 0 ? json_integer((json_int_t)number) : json_null();
}

static json_t *machine_value(const Bench *bench, const Machine *machine) {
    const DeviceInfo *info = has_gpu(bench) ? device_info(bench->device) : NULL;
    json_t *gpu = !info
                      ? json_null()
                      : json_pack("{s:s, s:s, s:i, s:I, s:s?}", "name", info->name, "target", info->target, "processors", info->processors,
                            "memory_bytes", (json_int_t)info->memory, "gemm_library", device_gemm_library(bench->device));
    return json_pack("{s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:o, s:o}", "host", machine->host, "cpu", machine->cpu, "system",
        machine->system.release, "threads", omp_get_max_threads(), "memory_bytes",
        system_number(_SC_PHYS_PAGES, (double)sysconf(_SC_PAGESIZE)), "l1_bytes", system_number(_SC_LEVEL1_DCACHE_SIZE, 1), "l2_bytes",
        system_number(_SC_LEVEL2_CACHE_SIZE, 1), "l3_bytes", system_number(_SC_LEVEL3_CACHE_SIZE, 1), "gpu", gpu);
}

static json_t *settings_of(const OptionTable *table, const void *values) {
    json_t *settings = json_object();
    for (size_t i = 0; i < table->count; i++) {
        char text[1024];
        options_format_value(&table->rows[i], values, text, sizeof text);
        json_object_set_new(settings, table->rows[i].name, json_string(text));
    }
    return settings;
}

static json_t *cell_value(const BenchColumn *column, const BenchCell *cell) {
    if (cell->text) return json_string(cell->text);
    if (!isfinite(cell->number)) return json_null();
    return column->decimals == 0 && fabs(cell->number) < 1e15 ? json_integer((json_int_t)cell->number) : json_real(cell->number);
}

bool bench_is_json(const char *path) {
    static const char start[] = "{\n \"benchmark\":";
    return file_begins(path, start, sizeof start - 1);
}

static void write_results_json(const Bench *bench, const Machine *machine, FILE *file) {
    const BenchResults *results = &bench->results;
    json_t *rows = json_array();
    for (int row = 0; row < results->row_count; row++) {
        json_t *object = json_object();
        for (int i = 0; i < results->column_count; i++)
            json_object_set_new(
                object, results->columns[i].name, cell_value(&results->columns[i], &results->cells[row * results->column_count + i]));
        json_array_append_new(rows, object);
    }
    json_t *all = json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "benchmark", bench->benchmark->name, "time", machine->time, "machine",
        machine_value(bench, machine), "settings", settings_of(&bench->benchmark->table, bench->options), "config",
        bench->configured ? settings_of(&config_table, &bench->config) : json_null(), "rows", rows);
    json_dumpf(all, file, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    putc('\n', file);
    json_decref(all);
}

/* -- Files --------------------------------------------------------------------------------------------------------- */

bool bench_is_plot(const char *path) { return file_begins(path, "<svg ", 5); }

static void write_plot(const Bench *bench, const Machine *machine, FILE *file) {
    SCOPED_FREE char *subtitle = memory_format("%s, %.10s", has_gpu(bench) ? machine->device : machine->cpu, machine->time);
    bench_draw(&bench->results, subtitle, file);
}

typedef void (*Writer)(const Bench *bench, const Machine *machine, FILE *file);

static bool write_results(const Bench *bench, const Machine *machine, const char *option, const char *path, Writer writer, Error *error) {
    if (!*path) return true;
    SCOPED_FREE char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (file) writer(bench, machine, file);
    bool written = file && fclose(file) == 0 && file_output(path, text, (int64_t)length, error);
    return written || error_set(error, ERROR_DATA, "cannot write %s=%s: %s", option, path, strerror(errno));
}

bool bench_write(const Bench *bench, Error *error) {
    const BenchOptions *options = bench->options;
    SCOPED(free_machine) Machine machine = {0};
    if (bench->silent || !bench->results.row_count) return true;
    fill_machine(&machine, bench);
    return write_results(bench, &machine, "csv", options->csv, write_csv, error) &&
           write_results(bench, &machine, "json", options->json, write_results_json, error) &&
           write_results(bench, &machine, "plot", options->plot, write_plot, error);
}

/* -- The device ---------------------------------------------------------------------------------------------------- */

bool bench_open_device(Bench *bench, Precision precision, Error *error) {
    if (!bench->device) bench->device = bench->open_device(((const BenchOptions *)bench->options)->device, precision, error);
    if (bench->device) device_set_exact(bench->device, bench->config.exact);
    return bench->device != NULL;
}
