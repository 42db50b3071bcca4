/* Modeled cycles of the hot kernels (tools/rocemu/timing.c) on the emulated GPU of ROCEMU_GPU, against the table
 * cycles.csv beside this file. A launch that takes over 3% longer than its row fails, and so does one that has no row:
 * `make amd-cycles` writes the table anew, and what changed belongs into the same commit. The table says of which
 * compiler the kernels are, because another one makes other code: then nothing is compared. With CYCLES=FILE the rows
 * are written there instead; CYCLES_CASES chooses the cases: small, all, or the beginning of a name.
 *
 * Each case runs in a process of its own, because the emulator reports when a process ends. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "rocemu/kernel_cases.h"

enum { MOST_ROWS_OF_TABLE = 4096, LINE = 1024 };
static const double GROWTH = 1.03;

typedef struct Row {
    char key[320]; /* target, case, kernel, grid */
    double cycles;
    char line[LINE];
} Row;
typedef struct Table {
    Row *row;
    int count;
    char compiler[160]; /* of the target's kernels */
} Table;

static const char *target(void) { return getenv("ROCEMU_GPU") ? getenv("ROCEMU_GPU") : "gfx942"; }
static const char *compiler(void) {
    char name[64];
    snprintf(name, sizeof name, "CYCLES_COMPILER_%.16s", target());
    return getenv(name);
}

/* Rows begin with target, case, kernel, grid, cycles. */
static void add_row(Table *table, const char *line) {
    Row *row = &table->row[table->count];
    const char *at = line;
    for (int field = 0; field < 4 && at; field++) at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL;
    if (!at || table->count == MOST_ROWS_OF_TABLE || (size_t)(at - line) + 16 > sizeof row->key) return;
    memcpy(row->key, line, (size_t)(at - line) - 1);
    row->key[at - line - 1] = '\0';
    row->cycles = strtod(at, NULL);
    for (int i = 0, same = 1; i < table->count; i++) /* the second launch of a shape, with other arguments */
        if (!strncmp(table->row[i].line, line, (size_t)(at - line))) snprintf(row->key + (at - line) - 1, 16, " #%d", ++same);
    snprintf(row->line, sizeof row->line, "%s", line);
    if (row->cycles > 0) table->count++;
}

/* The rows of the target, and the compiler of the line "# TARGET COMPILER". */
static bool read_table(Table *table, const char *path) {
    FILE *file = fopen(path, "r");
    char line[LINE];
    if (!table->row) table->row = memory_allocate(MOST_ROWS_OF_TABLE * sizeof *table->row);
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        const char *at = line + 2 * (line[0] == '#');
        size_t n = strlen(target());
        if (strncmp(at, target(), n) != 0) continue;
        if (at > line) snprintf(table->compiler, sizeof table->compiler, "%.150s", at + n + 1);
        else add_row(table, line);
    }
    return file && fclose(file) == 0;
}

static const Row *find_row(const Table *table, const char *key) {
    for (int i = 0; i < table->count; i++)
        if (!strcmp(table->row[i].key, key)) return &table->row[i];
    return NULL;
}

static void run_case(const KernelCase *c, const char *path) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        setenv("ROCEMU_TIME", "sample", 1);
        setenv("ROCEMU_TIME_CSV", path, 1);
        setenv("ROCEMU_TIME_LABEL", c->name, 1);
        c->run(c);
        exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status) fail_msg("%s on %s did not run to its end", c->name, target());
}

/* The rows of all chosen cases. */
static Table model(void) {
    Table table = {0};
    char path[] = "/tmp/smelt-cycles-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    for (int i = 0; i < KERNEL_CASES; i++)
        if (kernel_case_is_in(getenv("CYCLES_CASES"), &kernel_cases[i])) run_case(&kernel_cases[i], path);
    assert_true(read_table(&table, path));
    unlink(path);
    return table;
}

static void write_table(const Table *table, const char *path) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "# %s %s\n", target(), compiler());
    for (int i = 0; i < table->count; i++) fprintf(file, "%s\n", table->row[i].line);
    assert_int_equal(fclose(file), 0);
}

static int count_slower(const Table *now, const Table *before) {
    int slower = 0;
    for (int i = 0; i < now->count; i++) {
        const Row *row = &now->row[i], *old = find_row(before, row->key);
        if (old && row->cycles <= GROWTH * old->cycles) continue;
        slower++;
        if (old) print_message("%s: %.0f modeled cycles, %+.1f%%\n", row->key, row->cycles, 100 * (row->cycles / old->cycles - 1));
        else print_message("%s: %.0f modeled cycles, not in the table\n", row->key, row->cycles);
    }
    return slower;
}

static void no_hot_kernel_takes_more_cycles_than_its_row_says(void **state) {
    (void)state;
    const char *to = getenv("CYCLES");
    if (!getenv("ROCEMU_LIBRARY") || !compiler()) {
        print_message("skipped: needs the emulator, and CYCLES_COMPILER with the target's name behind it (make test-amd sets them)\n");
        skip();
    }
    Table before = {0};
    bool found = read_table(&before, "tests/rocemu/cycles.csv");
    if (!to && strcmp(before.compiler, compiler()) != 0) {
        print_message("skipped: the table was made with %s, the kernels with %s: `make amd-cycles` on the commit before a change, then "
                      "after it, compares them\n",
            *before.compiler ? before.compiler : "no compiler for this target", compiler());
        skip();
    }
    Table now = model();
    if (to) {
        write_table(&now, to);
    } else {
        int slower = found ? count_slower(&now, &before) : now.count;
        if (slower) fail_msg("%d launches are over 3%% slower than the table; if that is meant: make amd-cycles", slower);
    }
    free(now.row);
    free(before.row);
}

/* model.csv has the rows of all cases, for reports from cards (tools/test-gpu). Its small cases show whether kernels have changed since. */
static void the_table_of_all_cases_is_not_stale(void **state) {
    static const double STALE = 0.1;
    (void)state;
    Table small = {0}, all = {0};
    assert_true(read_table(&small, "tests/rocemu/cycles.csv") && read_table(&all, "tests/rocemu/model.csv"));
    int stale = 0;
    for (int i = 0; i < small.count && all.count && !strcmp(small.compiler, all.compiler); i++) {
        const Row *row = find_row(&all, small.row[i].key);
        if (row && fabs(row->cycles / small.row[i].cycles - 1) <= STALE) continue;
        print_message("%s: %.0f cycles in cycles.csv, %.0f in model.csv\n", small.row[i].key, small.row[i].cycles, row ? row->cycles : 0);
        stale++;
    }
    if (stale) fail_msg("%d rows of model.csv are stale: make amd-model, and copy its build/amd-model.csv there", stale);
    free(small.row);
    free(all.row);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_hot_kernel_takes_more_cycles_than_its_row_says), cmocka_unit_test(the_table_of_all_cases_is_not_stale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
