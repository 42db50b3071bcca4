/* Tests of options: numbers, YAML, key=value, messages, round trips, and random damage to a configuration. Owns a
 * temporary folder for the tests that read files; run by `make test`. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/rng.h"
#include "base/wrap.h"
#include "ops/norm/norm.h"
#include "support/mentions.h"

typedef struct Settings {
    const char *run;
    bool verbose;
    int64_t width;
    int64_t any;
    double lr;
    double real;
    double momentum;
    int recompute;
    const char *path;
    double muon_lr;
    RealList factors;
} Settings;

#define ROW(name, type, field, initial, minimum, maximum, choices, unit, help) \
    {name, type, offsetof(Settings, field), initial, minimum, maximum, choices, unit, help}
static const Option rows[] = {
    ROW("run", OPTION_STRING, run, "", 0, 0, NULL, "", "folder of the run"),
    ROW("any", OPTION_INT, any, "0", -0x1p63, 0x1p63, NULL, "", "any whole number"),
    ROW("verbose", OPTION_BOOL, verbose, "no", 0, 0, NULL, "", "print more"),
    ROW("model.width", OPTION_INT, width, "256", 1, 1e6, NULL, "channels", "size of the residual stream"),
    ROW("model.recompute", OPTION_CHOICE, recompute, "none", 0, 0, "none|norm|block", "", "what is computed again"),
    ROW("optimizer.lr", OPTION_REAL, lr, "3e-3", 0, 1, NULL, "", "peak learning rate"),
    ROW("optimizer.momentum", OPTION_REAL, momentum, "0.9", 0, INFINITY, NULL, "", "momentum"),
    ROW("optimizer.muon.lr", OPTION_REAL, muon_lr, "0.02", 0, 1, NULL, "", "learning rate of Muon"),
    ROW("data.path", OPTION_STRING, path, "data/a # b", 0, 0, NULL, "", "prefix of the shards"),
    ROW("data.real", OPTION_REAL, real, "0", -INFINITY, INFINITY, NULL, "", "any number"),
    ROW("data.factors", OPTION_REALS, factors, "1,2", 0.5, INFINITY, NULL, "", "a list"),
};
static const OptionTable table = {rows, sizeof rows / sizeof *rows};

/* What a run remembers of its settings. */
static const Option run_rows[] = {
    {.name = "run",
        .type = OPTION_STRING,
        .offset = offsetof(Settings, run),
        .initial = "none",
        .unit = "",
        .help = "a folder",
        .path = true},
    {.name = "width",
        .type = OPTION_INT,
        .offset = offsetof(Settings, width),
        .initial = "8",
        .maximum = 99,
        .unit = "",
        .help = "once",
        .class = OPTION_ONCE},
    {.name = "lr",
        .type = OPTION_REAL,
        .offset = offsetof(Settings, lr),
        .initial = "1",
        .maximum = 9,
        .unit = "",
        .help = "a rate",
        .class = OPTION_CHANGES},
};
static const OptionTable run_table = {run_rows, sizeof run_rows / sizeof *run_rows};

typedef struct Bench {
    Settings values;
    OptionStrings strings;
    Error error;
    char folder[64];
} Bench;

static int bench_setup(void **state) {
    Bench *bench = memory_allocate(sizeof *bench);
    strcpy(bench->folder, "/tmp/smelt-test-options-XXXXXX");
    if (!mkdtemp(bench->folder)) return -1;
    options_defaults(&table, &bench->values, &bench->strings);
    *state = bench;
    return 0;
}

static int bench_teardown(void **state) {
    Bench *bench = *state;
    char *file = memory_format("%s/x.yaml", bench->folder);
    unlink(file);
    free(file);
    rmdir(bench->folder);
    options_free_strings(&bench->strings);
    free(bench);
    return 0;
}

static bool parse_bytes(Bench *bench, const char *text, size_t length) {
    bench->error = (Error){0};
    return options_parse_yaml(&table, &bench->values, &bench->strings, text, length, "c.yaml", &bench->error);
}

static bool parse(Bench *bench, const char *text) { return parse_bytes(bench, text, strlen(text)); }

static bool set(Bench *bench, const char *assignment) {
    bench->error = (Error){0};
    return options_set(&table, &bench->values, &bench->strings, assignment, &bench->error);
}

static void assert_one_line_usage_error(const Bench *bench) {
    assert_int_equal(bench->error.code, ERROR_USAGE);
    for (const char *c = bench->error.message; *c; c++) assert_true((unsigned char)*c >= 0x20);
}

static void assert_refused(Bench *bench, const char *text, const char *message) {
    if (parse(bench, text)) fail_msg("accepted: %s", text);
    assert_one_line_usage_error(bench);
    assert_mentions(bench->error.message, message);
}

static void assert_set_refused(Bench *bench, const char *assignment, const char *message) {
    if (set(bench, assignment)) fail_msg("accepted: %s", assignment);
    assert_one_line_usage_error(bench);
    assert_mentions(bench->error.message, message);
}

/* -- Values ------------------------------------------------------------------------------------------------------- */

static void defaults_come_from_the_table(void **state) {
    Bench *bench = *state;
    assert_string_equal(bench->values.run, "");
    assert_int_equal(bench->values.width, 256);
    assert_int_equal(bench->values.recompute, 0);
    assert_true(bench->values.lr == 3e-3);
    assert_string_equal(bench->values.path, "data/a # b");
    assert_false(bench->values.verbose);
}

static void a_default_that_its_row_refuses_aborts(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        const Option wrong = ROW("w", OPTION_INT, width, "0", 1, 2, NULL, "", "");
        Settings values;
        OptionStrings strings = {0};
        fclose(stderr);
        stderr = fopen("/dev/null", "w");
        options_defaults(&(OptionTable){&wrong, 1}, &values, &strings);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
}

static void whole_numbers_are_read_in_every_spelling(void **state) {
    static const struct {
        const char *text;
        int64_t value;
    } spellings[] = {{"4096", 4096}, {"+7", 7}, {"-7", -7}, {"0", 0}, {"-0", 0}, {"007", 7}, {"4k", 4000}, {"1M", 1000000},
        {"2G", 2000000000}, {"3T", 3000000000000}, {"16Ki", 16384}, {"1Mi", 1 << 20}, {"1Gi", 1 << 30}, {"1Ti", 1ll << 40},
        {"1e6", 1000000}, {"1E+6", 1000000}, {"12e-1k", 1200}, {"1.5k", 1500}, {"1.5Ki", 1536}, {"1.500e1", 15}, {"10.", 10}, {".5k", 500},
        {"1000e-3", 1}, {"0e999999999999", 0}, {"0.000", 0}, {"1.0000000000000000000000000000", 1}, {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN}, {"9.223372036854775807e18", INT64_MAX}};
    Bench *bench = *state;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        char *assignment = memory_format("any=%s", spellings[i].text);
        if (!set(bench, assignment) || bench->values.any != spellings[i].value) fail_msg("%s: %s", assignment, bench->error.message);
        free(assignment);
    }
}

static void texts_that_are_no_whole_number_are_refused_and_change_nothing(void **state) {
    static const char *const texts[] = {"", " ", "k", "+", "-", ".", "1 ", " 1", "1x", "1K", "1m", "1kk", "1kB", "1Kib", "0x10", "1_000",
        "1,000", "--1", "1e", "1e+", "1ee3", "e3", "nan", "NaN", "inf", "-inf", "Infinity", "2.5", "1e-1", "0.1k1", "1.2345k", "1..2",
        "9223372036854775808", "-9223372036854775809", "1e19", "1e999999999999", "9223372036854775807k", "16777216Ti",
        "99999999999999999999999999", "true"};
    Bench *bench = *state;
    bench->values.any = 77;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *assignment = memory_format("any=%s", texts[i]);
        if (set(bench, assignment)) fail_msg("accepted: %s", assignment);
        assert_one_line_usage_error(bench);
        assert_int_equal(bench->values.any, 77);
        free(assignment);
    }
}

static void reals_are_read_in_every_spelling(void **state) {
    static const struct {
        const char *text;
        double value;
    } spellings[] = {{"0.003", 0.003}, {"3e-4", 3e-4}, {"1e6", 1e6}, {".5", 0.5}, {"-2.", -2}, {"4k", 4000}, {"2Ki", 2048},
        {"1.7976931348623157e308", DBL_MAX}, {"5e-324", 5e-324}, {"0.1", 0.1}, {"123456789012345678901234567890", 1.2345678901234568e29}};
    Bench *bench = *state;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        char *assignment = memory_format("data.real=%s", spellings[i].text);
        if (!set(bench, assignment) || bench->values.real != spellings[i].value) fail_msg("%s: %s", assignment, bench->error.message);
        free(assignment);
    }
}

static void texts_that_are_no_finite_real_are_refused(void **state) {
    static const char *const texts[] = {"", "nan", "inf", "-infinity", "1e400", "1e-400", "-3.7e-9999999999", "1e308k", "0x1p3", "1f",
        "1.0abc", "1 2", "1e-", "0.1.2", "nan(1)"};
    Bench *bench = *state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *assignment = memory_format("data.real=%s", texts[i]);
        if (set(bench, assignment)) fail_msg("accepted: %s", assignment);
        assert_one_line_usage_error(bench);
        free(assignment);
    }
}

static void booleans_are_read_in_every_spelling(void **state) {
    static const struct {
        const char *assignment;
        bool value;
    } spellings[] = {{"verbose=true", true}, {"verbose=no", false}, {"verbose=yes", true}, {"verbose=off", false}, {"verbose=on", true},
        {"verbose=false", false}, {"verbose=True", true}};
    Bench *bench = *state;
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        assert_true(set(bench, spellings[i].assignment));
        assert_int_equal(bench->values.verbose, spellings[i].value);
    }
    assert_set_refused(bench, "verbose=1", "'verbose=1' '1'");
}

static void choices_are_read_whole_and_exactly(void **state) {
    Bench *bench = *state;
    assert_true(set(bench, "model.recompute=block"));
    assert_int_equal(bench->values.recompute, 2);
    assert_true(set(bench, "model.recompute=none"));
    assert_int_equal(bench->values.recompute, 0);
    assert_false(set(bench, "model.recompute=bloc"));
    assert_false(set(bench, "model.recompute=none|norm"));
    assert_false(set(bench, "model.recompute="));
    assert_set_refused(bench, "model.recompute=Norm", "model.recompute 'model.recompute=Norm' 'Norm' none|norm|block");
}

static void limits_are_inclusive_and_named(void **state) {
    Bench *bench = *state;
    assert_true(set(bench, "model.width=1"));
    assert_true(set(bench, "model.width=1M"));
    assert_set_refused(bench, "model.width=0", "model.width 'model.width=0' '0' 1 1000000");
    assert_false(set(bench, "model.width=1000001"));
    assert_true(set(bench, "optimizer.lr=1"));
    assert_set_refused(bench, "optimizer.lr=1.5", "optimizer.lr 'optimizer.lr=1.5' '1.5' 0 1");
    assert_set_refused(bench, "optimizer.momentum=-1", "optimizer.momentum 'optimizer.momentum=-1' '-1' 0");
}

static void strings_are_taken_as_they_are(void **state) {
    Bench *bench = *state;
    assert_true(set(bench, "run= a=b, c: #d\n"));
    assert_string_equal(bench->values.run, " a=b, c: #d\n");
    assert_true(set(bench, "run="));
    assert_string_equal(bench->values.run, "");
    assert_set_refused(bench, "run=a\xff", "'run=a\\xff' 'a\\xff' UTF-8 UTF-8");
}

static void invalid_utf8_is_distinguished_from_valid(void **state) {
    Bench *bench = *state;
    static const char *const valid[] = {
        "run=\xc2\x80", "run=\xdf\xbf", "run=\xe0\xa0\x80", "run=\xed\x9f\xbf", "run=\xf0\x90\x80\x80", "run=\xf4\x8f\xbf\xbf"};
    static const char *const invalid[] = {"run=\x80", "run=\xc0\x80", "run=\xc1\xbf", "run=\xe0\x9f\xbf", "run=\xc2", "run=\xed\xa0\x80",
        "run=\xf0\x8f\xbf\xbf", "run=\xf4\x90\x80\x80", "run=\xf8\x88\x80\x80\x80", "run=\xe2\x82", "run=\xff"};
    for (size_t i = 0; i < sizeof valid / sizeof *valid; i++) assert_true(set(bench, valid[i]));
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) assert_false(set(bench, invalid[i]));
}

/* -- Names -------------------------------------------------------------------------------------------------------- */

static void an_unknown_key_is_answered_with_the_nearest(void **state) {
    Bench *bench = *state;
    assert_refused(bench, "run: r\noptimizer:\n  muon.rl: 3\n", "'optimizer.muon.rl' c.yaml:3 'optimizer.muon.lr'?");
    assert_refused(bench, "optimiser:\n  # slow\n  lr: 3e-4\n", "'optimiser.lr' c.yaml:3 'optimizer.lr'?");
    assert_set_refused(bench, "modle.width=3", "'modle.width' 'modle.width=3' 'model.width'?");
    assert_set_refused(bench, "momentum=3", "'momentum' 'momentum=3' 'optimizer.momentum'?");
    assert_set_refused(bench, "=3", "'' '=3' --help");
    assert_set_refused(bench, "zebra=3", "'zebra' 'zebra=3' --help");
    assert_refused(bench, "zebra: {}", "'zebra' c.yaml:1 --help");
}

static void a_name_of_another_program_is_answered_with_ours(void **state) {
    Bench *bench = *state;
    static const char told[] = "did you mean 'optimizer.lr' (peak learning rate)?";
    static const char *const names[] = {
        "learning_rate=1", "train.learning_rate=1", "optimizer.learning-rate=1", "Learning_Rate=1", "max_lr=1"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_false(set(bench, names[i]));
        if (!mentions(bench->error.message, told)) fail_msg("%s: %s", names[i], bench->error.message);
    }
    assert_refused(bench, "hidden_size: 3\n", "'hidden_size' c.yaml:1 'model.width'");
    assert_set_refused(bench, "temp=1", "'temp' 'temp=1' --help"); /* no table row of ours */
}

static void a_huge_unknown_key_is_cut_in_the_message(void **state) {
    Bench *bench = *state;
    char *key = memory_allocate(5000);
    memset(key, 'k', 4990);
    strcat(key, "=1");
    assert_false(set(bench, key));
    assert_one_line_usage_error(bench);
    assert_true(strlen(bench->error.message) < 400);
    memcpy(key + 900, ": 1", 4);
    assert_false(parse(bench, key));
    assert_mentions(bench->error.message, "makes 127 bytes");
    free(key);
}

static void an_assignment_without_equals_is_refused(void **state) {
    assert_set_refused(*state, "verbose", "'verbose' key=value");
    assert_set_refused(*state, "", "'' key=value");
    assert_set_refused(*state, "a\033[2J\n", "'a\\x1b[2J\\x0a' key=value");
}

/* -- YAML --------------------------------------------------------------------------------------------------------- */

static void nested_and_dotted_keys_set_the_same_rows(void **state) {
    Bench *bench = *state;
    assert_true(parse(bench, "# comment\nrun: 'r #1'\nmodel:\n  width: 4k\n  recompute: norm\noptimizer: {lr: 1e-3, "
                             "muon: {lr: 0.5}}\ndata.real: -2\nverbose: on\n"));
    assert_string_equal(bench->values.run, "r #1");
    assert_int_equal(bench->values.width, 4000);
    assert_int_equal(bench->values.recompute, 1);
    assert_true(bench->values.lr == 1e-3 && bench->values.muon_lr == 0.5 && bench->values.real == -2);
    assert_true(bench->values.verbose);
    assert_true(bench->values.momentum == 0.9);
}

static void an_empty_configuration_keeps_the_defaults(void **state) {
    Bench *bench = *state;
    Settings before = bench->values;
    static const char *const texts[] = {"", "# nothing\n", "---\n", "{}", "null\n", "\xEF\xBB\xBF", "--- ~\n...\n", "model: {}\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!parse(bench, texts[i])) fail_msg("%s: %s", texts[i], bench->error.message);
    assert_memory_equal(&before, &bench->values, sizeof before);
}

static void duplicate_keys_are_refused_in_every_spelling(void **state) {
    Bench *bench = *state;
    assert_refused(bench, "run: a\nverbose: on\nrun: b\n", "'run' c.yaml:3 1");
    assert_refused(bench, "model:\n  width: 1\nmodel.width: 2\n", "'model.width' c.yaml:3 2");
    assert_refused(bench, "model:\n  width: 1\nmodel:\n  recompute: norm\n", "'model' c.yaml:3 1");
    assert_refused(bench, "optimizer: {muon: {lr: 0.1}, muon: {lr: 0.2}}", "'optimizer.muon' c.yaml:1 1");
}

static void what_is_no_plain_mapping_is_refused(void **state) {
    Bench *bench = *state;
    assert_refused(bench, "run: [a, b]\n", "c.yaml:1 'run'");
    assert_refused(bench, "- a\n- b\n", "c.yaml:1");
    assert_refused(bench, "run: &x a\n", "c.yaml:1 'run'");
    assert_refused(bench, "model: &x {width: 1}\n", "c.yaml:1 'model'");
    assert_refused(bench, "run: *x\n", "(*name) c.yaml:1 'run'");
    assert_refused(bench, "verbose: !!bool yes\n", "c.yaml:1 'verbose'");
    assert_refused(bench, "hello\n", "'key c.yaml:1");
    assert_refused(bench, "run: a\n---\nrun: b\n", "c.yaml:2");
    assert_refused(bench, "? {a: b}\n: c\n", "c.yaml:1");
    assert_refused(bench, "'': c\n", "'' c.yaml:1 NUL --help");
    assert_refused(bench, "\"ru\\0n\": c\n", "'ru\\x00n' c.yaml:1 NUL --help");
}

static void a_group_where_a_value_belongs_and_the_reverse_are_refused(void **state) {
    Bench *bench = *state;
    assert_refused(bench, "model: 5\n", "c.yaml:1 model.width '5'");
    assert_refused(bench, "\nmodel:\n", "c.yaml:2 model.width ''");
    assert_refused(bench, "run: {a: b}\n", "'run.a' c.yaml:1 'run'?");
}

static void a_key_without_a_value_is_refused(void **state) {
    Bench *bench = *state;
    assert_refused(bench, "run:\n",
        "run at c.yaml:1 has no value; leave the key out to keep the default '', or write "
        "'' for an empty text");
    assert_refused(bench, "model: {width: ~}\n", "model.width at c.yaml:1 has no value; leave the key out to keep the default '256'");
    assert_true(parse(bench, "run: ''\ndata: {path: 'null'}\n"));
    assert_string_equal(bench->values.run, "");
    assert_string_equal(bench->values.path, "null");
}

static void a_wrong_value_names_file_line_key_value_and_limits(void **state) {
    Bench *bench = *state;
    assert_refused(bench, "\n\noptimizer:\n  lr: fast\n", "optimizer.lr c.yaml:4 'fast' 0 1");
    assert_refused(bench, "any: 2.5\n", "c.yaml:1 '2.5'");
    assert_refused(bench, "any: 1e30\n", "c.yaml:1 '1e30' 64");
    assert_refused(bench, "any: \"1\\02\"\n", "c.yaml:1 '1\\x002' NUL");
    assert_refused(bench, "run: \"a\\0b\"\n", "c.yaml:1 'a\\x00b' NUL UTF-8");
}

static void broken_yaml_is_refused_with_its_line(void **state) {
    Bench *bench = *state;
    assert_refused(bench, "run: a\n  verbose: b\n", "YAML c.yaml:2");
    assert_refused(bench, "run: 'a\n\n", "YAML c.yaml:3 1");
    assert_refused(bench, "model:\n\twidth: 1\n", "YAML c.yaml:2 YAML");
    assert_refused(bench, "model:\n  width: 1\n   lr: 2\n", "model.width c.yaml:2 3");
    assert_refused(bench, "run: a\nverbose: \x01\n", "YAML c.yaml:2");
    assert_refused(bench, "model: {width: 1\n", "YAML c.yaml:2 ',' '}' 1");
}

static void bytes_that_are_no_text_are_refused_in_one_line(void **state) {
    Bench *bench = *state;
    assert_false(parse_bytes(bench, "run: a\nany: \0001\n", 15));
    assert_mentions(bench->error.message, "NUL c.yaml:2 UTF-8");
    assert_false(parse_bytes(bench, "run: a\n\xfe\n", 9));
    assert_mentions(bench->error.message, "0xfe c.yaml:2 UTF-8 UTF-8");
    assert_false(parse_bytes(bench, "\xff\xfer\0u\0n\0", 8));
    assert_one_line_usage_error(bench);
    size_t length = (1 << 20) + 1;
    char *large = memory_allocate(length);
    memset(large, '\n', length);
    assert_true(parse_bytes(bench, large, length - 1));
    assert_false(parse_bytes(bench, large, length));
    assert_mentions(bench->error.message, "c.yaml 1048576");
    free(large);
}

static void deep_nesting_is_refused(void **state) {
    Bench *bench = *state;
    char *text = memory_allocate(1 << 20);
    for (int i = 0; i < 200000; i += 2) memcpy(text + i, "{a", 2);
    assert_false(parse(bench, text));
    assert_one_line_usage_error(bench);
    strcpy(text, "a: {a: {a: {a: {a: {a: {a: {a: {a: 1}}}}}}}}");
    assert_refused(bench, text, "'a.a.a.a.a.a.a.a' c.yaml:1 8 --help");
    memset(text, '[', 1000000);
    assert_false(parse(bench, text));
    memset(text, '{', 1000000);
    assert_false(parse(bench, text));
    free(text);
}

static char *bench_file(const Bench *bench) { return memory_format("%s/x.yaml", bench->folder); }

static void a_file_is_read_and_named_in_messages(void **state) {
    Bench *bench = *state;
    char *path = bench_file(bench);
    FILE *file = fopen(path, "w");
    fputs("run: from file\nvidth: 3\n", file);
    fclose(file);
    assert_false(options_read_yaml(&table, &bench->values, &bench->strings, path, &bench->error));
    assert_string_equal(bench->values.run, "from file");
    assert_mentions(bench->error.message, path);
    assert_mentions(bench->error.message, "x.yaml:2;");
    free(path);
}

static void a_file_that_cannot_be_read_is_an_error_with_the_reason(void **state) {
    Bench *bench = *state;
    char *path = bench_file(bench);
    assert_false(options_read_yaml(&table, &bench->values, &bench->strings, path, &bench->error));
    assert_int_equal(bench->error.code, ERROR_USAGE);
    assert_mentions(bench->error.message, "such");
    assert_false(options_read_yaml(&table, &bench->values, &bench->strings, bench->folder, &bench->error));
    assert_mentions(bench->error.message, "Is a directory");
    assert_false(options_read_yaml(&table, &bench->values, &bench->strings, "/dev/zero", &bench->error));
    assert_mentions(bench->error.message, "regular");
    fclose(fopen(path, "w"));
    assert_int_equal(truncate(path, 1 << 30), 0);
    assert_false(options_read_yaml(&table, &bench->values, &bench->strings, path, &bench->error));
    assert_mentions(bench->error.message, "larger");
    free(path);
}

/* -- Output ------------------------------------------------------------------------------------------------------- */

static char *yaml_of(const Settings *values) {
    char *text;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    options_write_yaml(&table, values, file);
    fclose(file);
    return text;
}

static void assert_round_trip(Bench *bench) {
    char *text = yaml_of(&bench->values);
    Bench copy = {0};
    options_defaults(&table, &copy.values, &copy.strings);
    if (!parse(&copy, text)) fail_msg("%s\n%s", copy.error.message, text);
    char difference[1000];
    if (options_difference(&table, &bench->values, &copy.values, difference, sizeof difference)) fail_msg("%s", difference);
    assert_memory_equal(&bench->values.real, &copy.values.real, sizeof(double)); /* -0 is not 0 */
    options_free_strings(&copy.strings);
    free(text);
}

static void defaults_survive_writing_and_reading(void **state) { assert_round_trip(*state); }

static void every_double_survives_writing_and_reading(void **state) {
    Bench *bench = *state;
    static const double extremes[] = {0.0, -0.0, 0.1, 1.0 / 3, DBL_MAX, -DBL_MAX, DBL_MIN, 5e-324, 1e22, 1e23, 123456789.125};
    for (size_t i = 0; i < sizeof extremes / sizeof *extremes; i++) {
        bench->values.real = extremes[i];
        assert_round_trip(bench);
    }
    for (uint64_t i = 0; i < 1000; i++) {
        RngBits bits = rng_bits(5, RNG_STREAM_BENCH, i);
        double value;
        memcpy(&value, bits.word, sizeof value);
        if (!isfinite(value)) continue;
        bench->values.real = value;
        assert_round_trip(bench);
    }
}

static void every_string_survives_writing_and_reading(void **state) {
    Bench *bench = *state;
    static const char *const texts[] = {"", " ", "~", "null", "true", "a: b", "- a", "# c", "'", "\"", "\\", "\\n", "\n", "a\r\nb\t",
        "\x01\x1b\x7f", "{}", "\xc2\x80\xc2\x85\xc2\xa0", "\xe2\x80\xa8\xe2\x80\xa9", "\xef\xbb\xbf", "\xef\xbf\xbe\xef\xbf\xbf",
        "caf\xc3\xa9", "\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf", "  leading and trailing  ", "%TAG", "&x", "*x", "!!str", "a\n\n  b", "50%d%s"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bench->values.run = bench->values.path = texts[i];
        assert_round_trip(bench);
    }
    char *large = memory_allocate(20000);
    memset(large, 'x', 19999);
    bench->values.run = large;
    assert_round_trip(bench);
    bench->values.run = "";
    free(large);
}

static void every_list_of_numbers_survives_writing_and_reading(void **state) {
    Bench *bench = *state;
    for (int64_t count = 0; count <= REAL_LIST_MOST; count += 32) {
        bench->values.factors = (RealList){.count = count};
        for (int64_t i = 0; i < count; i++) bench->values.factors.items[i] = 1 / (1.1 + (double)i / 1e3) + (double)i * 1e290;
        assert_round_trip(bench);
    }
}

static void lists_of_numbers_are_checked_item_by_item(void **state) {
    Bench *bench = *state;
    assert_true(set(bench, "data.factors=0.5,1e3,2k"));
    assert_int_equal(bench->values.factors.count, 3);
    assert_true(bench->values.factors.items[0] == 0.5 && bench->values.factors.items[1] == 1000 && bench->values.factors.items[2] == 2000);
    char *many = memory_allocate(2 * REAL_LIST_MOST + 16), *end = many + sprintf(many, "data.factors=1");
    for (int i = 0; i < REAL_LIST_MOST; i++) end += sprintf(end, ",1");
    const char *const wrong[] = {"data.factors=1,", "data.factors=,1", "data.factors=1,,2", "data.factors=1,nan", "data.factors=x",
        "data.factors=1 2", "data.factors=1,0.4", many};
    static const char *const reasons[] = {"ends with a comma", "is not a list", "is not a list", "is not a list", "is not a finite number",
        "is not a finite number", "is out of range", "has more than 128 numbers"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(set(bench, wrong[i]));
        assert_non_null(strstr(bench->error.message, "data.factors"));
        assert_non_null(strstr(bench->error.message, reasons[i]));
    }
    assert_int_equal(bench->values.factors.count, 3);
    free(many);
}

static void every_integer_choice_and_bool_survives_writing_and_reading(void **state) {
    Bench *bench = *state;
    static const int64_t integers[] = {INT64_MIN, INT64_MAX, -1, (1ll << 53) + 1};
    for (int i = 0; i < 12; i++) {
        bench->values.any = integers[i % 4];
        bench->values.recompute = i % 3;
        bench->values.verbose = i % 2;
        assert_round_trip(bench);
    }
}

static void a_formatted_value_is_read_back_by_set(void **state) {
    Bench *bench = *state;
    assert_true(set(bench, "run=a = 'b'\n") && set(bench, "optimizer.lr=0.1") && set(bench, "model.recompute=norm"));
    Settings before = bench->values;
    for (size_t i = 0; i < table.count; i++) {
        char text[256];
        options_format_value(&rows[i], &before, text, sizeof text);
        char *assignment = memory_format("%s=%s", rows[i].name, text);
        assert_true(set(bench, assignment));
        free(assignment);
    }
    assert_int_equal(options_difference(&table, &before, &bench->values, NULL, 0), 0);
    char text[4];
    options_format_value(&rows[0], &before, text, sizeof text);
    assert_string_equal(text, "a =");
}

static void written_yaml_groups_rows_and_carries_help(void **state) {
    Bench *bench = *state;
    char *text = yaml_of(&bench->values);
    assert_string_equal(text, "run: \"\"                                 # folder of the run\n"
                              "any: 0                                  # any whole number\n"
                              "verbose: false                          # print more\n"
                              "model:\n"
                              "  width: 256                            # size of the residual stream [channels]\n"
                              "  recompute: none                       # what is computed again\n"
                              "optimizer:\n"
                              "  lr: 0.003                             # peak learning rate\n"
                              "  momentum: 0.9                         # momentum\n"
                              "  muon.lr: 0.02                         # learning rate of Muon\n"
                              "data:\n"
                              "  path: \"data/a # b\"                    # prefix of the shards\n"
                              "  real: 0                               # any number\n"
                              "  factors: \"1,2\"                        # a list\n");
    free(text);
}

static char *help_of(const OptionTable *of) {
    char *text;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    options_print_help(of, file);
    fclose(file);
    return text;
}

static void help_is_grouped_and_gives_defaults_and_limits(void **state) {
    (void)state;
    char *text = help_of(&table);
    assert_string_equal(text, "general\n"
                              "  run=                        folder of the run\n"
                              "  any=0                       any whole number (whole number)\n"
                              "  verbose=no                  print more (true|false)\n"
                              "\n"
                              "model\n"
                              "  model.width=256             size of the residual stream (channels, 1 to\n"
                              "                              1000000)\n"
                              "  model.recompute=none        what is computed again (none|norm|block)\n"
                              "\n"
                              "optimizer\n"
                              "  optimizer.lr=3e-3           peak learning rate (0 to 1)\n"
                              "  optimizer.momentum=0.9      momentum (at least 0)\n"
                              "  optimizer.muon.lr=0.02      learning rate of Muon (0 to 1)\n"
                              "\n"
                              "data\n"
                              "  data.path=data/a # b        prefix of the shards\n"
                              "  data.real=0                 any number (number)\n"
                              "  data.factors=1,2            a list (at least 0.5)\n");
    free(text);
}

static void help_is_wrapped_below_its_column(void **state) {
    (void)state;
    const Option wide[] = {ROW("a", OPTION_CHOICE, recompute, "none", 0, 0, "none|norm|block", "",
                               "the first of two settings, with a help that is longer than a line of a terminal"),
        ROW("b.of_a_name_of_many_letters", OPTION_BOOL, verbose, "on", 0, 0, NULL, "", "second")};
    char *text = help_of(&(OptionTable){wide, 2});
    assert_string_equal(text, "general\n"
                              "  a=none                      the first of two settings, with a help that is\n"
                              "                              longer than a line of a terminal (none|norm|block)\n"
                              "\n"
                              "b\n"
                              "  b.of_a_name_of_many_letters=on\n"
                              "                              second (true|false)\n");
    free(text);
}

/* Texts of commands: paragraphs, and lines that stay lines. */
static void explanations_are_wrapped_at_80_columns(void **state) {
    (void)state;
    char *text;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    wrap_text(file, "A paragraph whose lines\nwere broken elsewhere is joined, and it is broken again where 80 columns end.\n"
                    "  FILE.bin      a line of its own, whose second column is kept by what does not fit into 80 columns\n"
                    "  --short\n"
                    "\n"
                    "The second paragraph.\n");
    fclose(file);
    assert_string_equal(text, "A paragraph whose lines were broken elsewhere is joined, and it is broken again\n"
                              "where 80 columns end.\n"
                              "  FILE.bin      a line of its own, whose second column is kept by what does not\n"
                              "                fit into 80 columns\n"
                              "  --short\n"
                              "\n"
                              "The second paragraph.\n");
    free(text);
}

/* What a message says to type is found whole on its line, however long it is. */
static void commands_to_copy_are_not_broken(void **state) {
    (void)state;
    static const char *const commands[] = {"smelt train runs/first fork=runs/second from=150 steps=700",
        "smelt generate r \"Once upon a time\"",
        "smelt launch -n 2 -- train runs/a-run-of-a-long-name/and-more steps=1400 optimizer.lr=1e-3", "smelt convert runs/first my-model",
        "smelt data pack my-texts/ shards/all", "hf download meta-llama/Llama-3.2-1B --local-dir my-model"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        for (int before = 0; before < 80; before++) {
            char line[400], *text;
            size_t length;
            snprintf(line, sizeof line, "%.*s (smelt train RUN. %s; that goes on) and then some more words", before,
                "steps are fewer than the steps that were done: give more than these, or go on from another step by", commands[i]);
            FILE *file = open_memstream(&text, &length);
            wrap_lines(file, line, 80);
            fputc('\n', file);
            wrap_words(file, line, 0, 4);
            fclose(file);
            char *first = strstr(text, commands[i]);
            if (!first || !strstr(first + 1, commands[i])) fail_msg("\"%s\" is broken in:\n%s", commands[i], text);
            free(text);
        }
}

static void differences_are_listed_and_counted(void **state) {
    Bench *bench = *state;
    Settings before = bench->values;
    assert_true(set(bench, "run=a\nb") && set(bench, "optimizer.lr=0.1") && set(bench, "verbose=on"));
    assert_true(set(bench, "data.path=data/a # b")); /* equal text in another place */
    char text[200], small[10];
    assert_int_equal(options_difference(&table, &before, &bench->values, text, sizeof text), 3);
    assert_string_equal(text, "run: '' -> 'a\\x0ab'\nverbose: false -> true\noptimizer.lr: 0.003 -> 0.1\n");
    assert_int_equal(options_difference(&table, &before, &bench->values, small, sizeof small), 3);
    assert_string_equal(small, "run: '' -");
}

/* -- Damage ------------------------------------------------------------------------------------------------------- */

/* Whatever is done to a configuration, it is either refused in one line or gives values that survive a round trip. */
static void expect_absolute(const char *path, const char *folder, const char *expected) {
    char *absolute = options_absolute_path(path), *whole = memory_format("%s%s", folder, expected);
    assert_string_equal(absolute, whole);
    free(absolute);
    free(whole);
}

static void paths_become_absolute_in_one_spelling(void **state) {
    (void)state;
    char *folder = getcwd(NULL, 0);
    expect_absolute("text", folder, "/text");
    expect_absolute("././/text", folder, "/text");
    expect_absolute("../text", folder, "/../text");
    expect_absolute("/text", "", "/text");
    expect_absolute("s3://bucket/run", "", "s3://bucket/run");
    expect_absolute("none", "", "none");
    free(folder);
}

/* A folder of the name ~ would be made, or a file be missed that is there. */
static void a_path_that_only_a_shell_expands_is_refused(void **state) {
    Bench *bench = *state;
    static const char *const refused[] = {"run=~", "run=~/a", "run=$HOME/a", "run=${HOME}/a"};
    options_defaults(&run_table, &bench->values, &bench->strings);
    for (int i = 0; i < 4; i++) {
        assert_false(options_set(&run_table, &bench->values, &bench->strings, refused[i], &bench->error));
        assert_mentions(bench->error.message, "UTF-8");
    }
    assert_true(options_set(&run_table, &bench->values, &bench->strings, "run=./~/a", &bench->error));
    assert_true(options_set(&run_table, &bench->values, &bench->strings, "run=~a$", &bench->error));
}

static void a_run_remembers_absolute_paths_and_forgets_what_is_of_one_start(void **state) {
    Bench *bench = *state;
    options_defaults(&run_table, &bench->values, &bench->strings);
    assert_true(options_set(&run_table, &bench->values, &bench->strings, "run=runs/a", &bench->error));
    assert_true(options_set(&run_table, &bench->values, &bench->strings, "width=9", &bench->error));
    assert_true(options_set(&run_table, &bench->values, &bench->strings, "lr=2", &bench->error));
    options_remember(&run_table, &bench->values, &bench->strings);
    assert_true(bench->values.run[0] == '/' && strstr(bench->values.run, "/runs/a"));
    assert_int_equal(bench->values.width, 8);
    assert_true(bench->values.lr == 2);
}

static void a_class_is_told_behind_the_limits(void **state) {
    (void)state;
    char text[OPTIONS_EXPLANATION];
    options_explain(&run_table, &run_rows[2], text);
    assert_string_equal(text, "a rate (0 to 9; changes)");
    options_explain(&run_table, &run_rows[0], text);
    assert_string_equal(text, "a folder");
}

static void a_damaged_configuration_is_refused_or_read_whole(void **state) {
    Bench *bench = *state;
    static const char sound[] = "run: \"r\\u00e9\" # c\nmodel:\n  width: 4Ki\n  recompute: norm\noptimizer: {lr: 1e-3, "
                                "muon: {lr: .5}}\nany: -12\ndata:\n  path: 'a b'\n  real: 1.5e+3\nverbose: yes\n";
    static const char replacements[] = ":-{}[]'\"#&*!|>%@`\n\t ,?.0e\\\x80\xc3\xff";
    int accepted = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        char text[sizeof sound];
        memcpy(text, sound, sizeof sound);
        size_t length = sizeof sound - 1;
        RngBits bits = rng_bits(1, RNG_STREAM_BENCH, i);
        for (int edit = 0; edit < 1 + (int)(bits.word[3] % 3); edit++)
            text[(bits.word[0] + 7919u * (unsigned)edit) % length] = replacements[(bits.word[1] >> 8 * edit) % (sizeof replacements - 1)];
        if (bits.word[3] % 16 == 0) length = bits.word[2] % length;
        options_free_strings(&bench->strings);
        options_defaults(&table, &bench->values, &bench->strings);
        if (parse_bytes(bench, text, length)) {
            accepted++;
            assert_round_trip(bench);
        } else {
            assert_one_line_usage_error(bench);
        }
    }
    assert_in_range(accepted, 30, 2900); /* both outcomes were tried */
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, bench_setup, bench_teardown)
    const struct CMUnitTest tests[] = {
        TEST(defaults_come_from_the_table),
        TEST(a_default_that_its_row_refuses_aborts),
        TEST(whole_numbers_are_read_in_every_spelling),
        TEST(texts_that_are_no_whole_number_are_refused_and_change_nothing),
        TEST(reals_are_read_in_every_spelling),
        TEST(texts_that_are_no_finite_real_are_refused),
        TEST(booleans_are_read_in_every_spelling),
        TEST(choices_are_read_whole_and_exactly),
        TEST(limits_are_inclusive_and_named),
        TEST(strings_are_taken_as_they_are),
        TEST(a_path_that_only_a_shell_expands_is_refused),
        TEST(invalid_utf8_is_distinguished_from_valid),
        TEST(an_unknown_key_is_answered_with_the_nearest),
        TEST(a_name_of_another_program_is_answered_with_ours),
        TEST(a_huge_unknown_key_is_cut_in_the_message),
        TEST(an_assignment_without_equals_is_refused),
        TEST(nested_and_dotted_keys_set_the_same_rows),
        TEST(an_empty_configuration_keeps_the_defaults),
        TEST(duplicate_keys_are_refused_in_every_spelling),
        TEST(what_is_no_plain_mapping_is_refused),
        TEST(a_group_where_a_value_belongs_and_the_reverse_are_refused),
        TEST(a_key_without_a_value_is_refused),
        TEST(a_wrong_value_names_file_line_key_value_and_limits),
        TEST(broken_yaml_is_refused_with_its_line),
        TEST(bytes_that_are_no_text_are_refused_in_one_line),
        TEST(deep_nesting_is_refused),
        TEST(a_file_is_read_and_named_in_messages),
        TEST(a_file_that_cannot_be_read_is_an_error_with_the_reason),
        TEST(defaults_survive_writing_and_reading),
        TEST(every_double_survives_writing_and_reading),
        TEST(every_string_survives_writing_and_reading),
        TEST(every_list_of_numbers_survives_writing_and_reading),
        TEST(lists_of_numbers_are_checked_item_by_item),
        TEST(every_integer_choice_and_bool_survives_writing_and_reading),
        TEST(a_formatted_value_is_read_back_by_set),
        TEST(written_yaml_groups_rows_and_carries_help),
        TEST(help_is_grouped_and_gives_defaults_and_limits),
        TEST(help_is_wrapped_below_its_column),
        TEST(explanations_are_wrapped_at_80_columns),
        TEST(commands_to_copy_are_not_broken),
        TEST(differences_are_listed_and_counted),
        TEST(paths_become_absolute_in_one_spelling),
        TEST(a_run_remembers_absolute_paths_and_forgets_what_is_of_one_start),
        TEST(a_class_is_told_behind_the_limits),
        TEST(a_damaged_configuration_is_refused_or_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
