/* Tests of errors, random numbers, memory and log lines. Owns one temporary folder per test that needs one; run by
 * `make test`. */
#include <fcntl.h>
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

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/precise_sum.h"
#include "base/rng.h"
#include "base/strings.h"
#include "support/mentions.h"

/* The address sanitizer would abort where the system's malloc returns NULL, which is what is tested here. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "allocator_may_return_null=1"; }

/* -- Texts ------------------------------------------------------------------------------------------------------ */

static void only_a_count_of_one_has_a_singular(void **state) {
    (void)state;
    assert_string_equal(plural(1), "");
    const int64_t others[] = {0, 2, 11, INT64_MAX};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_string_equal(plural(others[i]), "s");
}

/* -- Sums ------------------------------------------------------------------------------------------------------- */

/* Terms are integers of 53 bits times powers of two, so that 128 bits hold their exact sum. */
static void a_precise_sum_is_exact_in_any_grouping(void **state) {
    (void)state;
    enum { TERMS = 100000, SCALE = 40 };
    static double terms[TERMS];
    __int128 exact = 0;
    for (int i = 0; i < TERMS; i++) {
        RngBits draw = rng_bits(7, 0, (uint64_t)i);
        uint64_t mantissa = ((uint64_t)draw.word[0] << 21) ^ draw.word[1];
        int shift = (int)(draw.word[2] % SCALE);
        terms[i] = ldexp((double)mantissa, shift - SCALE);
        exact += (__int128)mantissa << shift;
    }
    double expected = ldexp((double)exact, -SCALE);
    for (int groups = 1; groups <= TERMS; groups = 3 * groups + 1) {
        PreciseSum sum = {0};
        for (int g = 0; g < groups; g++) {
            PreciseSum part = {0};
            for (int i = g; i < TERMS; i += groups) precise_add(&part, terms[i]);
            precise_join(&sum, part);
        }
        assert_true(precise_value(sum) == expected);
    }
}

/* -- Errors ----------------------------------------------------------------------------------------------------- */

static void an_error_keeps_its_code_and_formatted_message(void **state) {
    (void)state;
    Error error = {0};
    assert_false(error_set(&error, ERROR_DATA, "%s has %d tokens", "a.bin", 3));
    assert_int_equal(error.code, ERROR_DATA);
    assert_string_equal(error.message, "a.bin has 3 tokens");
}

static void context_goes_before_the_message_and_keeps_the_code(void **state) {
    (void)state;
    Error error = {0};
    error_set(&error, ERROR_CHECKPOINT, "checksum differs");
    assert_false(error_context(&error, "step %d", 40));
    assert_string_equal(error.message, "step 40: checksum differs");
    assert_int_equal(error.code, ERROR_CHECKPOINT);
}

static void a_new_error_may_quote_the_old_message(void **state) {
    (void)state;
    Error error = {0};
    error_set(&error, ERROR_DATA, "inner");
    error_set(&error, ERROR_USAGE, "outer (%s)", error.message);
    assert_string_equal(error.message, "outer (inner)");
    error_context(&error, "%s again", error.message);
    assert_string_equal(error.message, "outer (inner) again: outer (inner)");
}

static void a_message_that_does_not_fit_ends_in_dots(void **state) {
    (void)state;
    Error error = {0};
    char *large = memory_allocate(5000);
    memset(large, 'x', 4999);
    error_set(&error, ERROR_DATA, "%s", large);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    assert_string_equal(error.message + sizeof error.message - 5, "x...");
    error_context(&error, "%s", large);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    assert_string_equal(error.message + sizeof error.message - 5, "x...");
    free(large);
}

static void a_message_is_not_cut_inside_a_character(void **state) {
    (void)state;
    Error error = {0};
    char large[5001] = "";
    for (int i = 0; i < 2500; i++) memcpy(large + 2 * i, "\xc3\xa9", 3);
    for (int shift = 0; shift < 2; shift++) {
        error_set(&error, ERROR_DATA, "%s%s", shift ? "x" : "", large);
        size_t length = strlen(error.message);
        assert_true(length >= sizeof error.message - 2);
        assert_string_equal(error.message + length - 5, "\xc3\xa9...");
    }
}

/* -- Random numbers --------------------------------------------------------------------------------------------- */

static void assert_bits(RngBits bits, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    assert_int_equal(bits.word[0], a);
    assert_int_equal(bits.word[1], b);
    assert_int_equal(bits.word[2], c);
    assert_int_equal(bits.word[3], d);
}

/* The three philox4x32-10 rows of Random123's kat_vectors; the last has different bits in each word, so it fixes the
 * order of words in counter and key. */
static void philox_matches_the_published_vectors(void **state) {
    (void)state;
    assert_bits(rng_bits(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
    assert_bits(rng_bits(UINT64_MAX, UINT64_MAX, UINT64_MAX), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
    assert_bits(rng_bits(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88), 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

enum { MOMENT_SAMPLES = 400000 };

typedef struct Moments { double mean, variance, skewness, kurtosis, least, greatest, lag; } Moments;

static Moments moments(double (*draw)(uint64_t, uint64_t, uint64_t), uint64_t seed) {
    Moments m = {.least = INFINITY, .greatest = -INFINITY};
    double *x = memory_allocate(MOMENT_SAMPLES * sizeof *x);
    for (int i = 0; i < MOMENT_SAMPLES; i++) {
        x[i] = draw(seed, RNG_STREAM_BENCH, (uint64_t)i);
        m.mean += x[i] / MOMENT_SAMPLES;
        m.least = fmin(m.least, x[i]);
        m.greatest = fmax(m.greatest, x[i]);
    }
    for (int i = 0; i < MOMENT_SAMPLES; i++) {
        double d = x[i] - m.mean;
        m.variance += d * d / MOMENT_SAMPLES;
        m.skewness += d * d * d / MOMENT_SAMPLES;
        m.kurtosis += d * d * d * d / MOMENT_SAMPLES;
        m.lag += i ? d * (x[i - 1] - m.mean) / MOMENT_SAMPLES : 0;
    }
    m.skewness /= pow(m.variance, 1.5);
    m.kurtosis /= m.variance * m.variance;
    m.lag /= m.variance;
    free(x);
    return m;
}

/* Tolerances are 5 standard errors of the estimate over n samples; the seeds are fixed, so a pass stays a pass. */
static void uniform_numbers_have_the_moments_of_a_uniform(void **state) {
    (void)state;
    double root = sqrt(MOMENT_SAMPLES);
    for (uint64_t seed = 0; seed < 3; seed++) {
        Moments m = moments(rng_uniform, seed);
        assert_true(fabs(m.mean - 0.5) < 5 * sqrt(1.0 / 12) / root);
        assert_true(fabs(m.variance - 1.0 / 12) < 5 * sqrt(1.0 / 180) / root); /* var of (u-1/2)^2 is 1/180 */
        assert_true(fabs(m.lag) < 5 / root);
        assert_true(m.least >= 0 && m.greatest < 1);
    }
}

static void normal_numbers_have_the_moments_of_a_normal(void **state) {
    (void)state;
    double root = sqrt(MOMENT_SAMPLES);
    for (uint64_t seed = 0; seed < 3; seed++) {
        Moments m = moments(rng_normal, seed);
        assert_true(fabs(m.mean) < 5 / root);
        assert_true(fabs(m.variance - 1) < 5 * sqrt(2.0) / root);
        assert_true(fabs(m.skewness) < 5 * sqrt(6.0) / root);
        assert_true(fabs(m.kurtosis - 3) < 5 * sqrt(24.0) / root);
        assert_true(fabs(m.lag) < 5 / root);
        assert_true(isfinite(m.least) && isfinite(m.greatest));
    }
}

static void normal_numbers_are_the_formula_of_box_and_muller(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 4096; i++) {
        RngBits bits = rng_bits(5, RNG_STREAM_BENCH, i / 4);
        double u = ((bits.word[i & 2] >> 1) + 0.5) * 0x1p-31, angle = M_PI / 2 * (int32_t)(bits.word[(i & 2) + 1] << 2) * 0x1p-32;
        angle += M_PI / 2 * (bits.word[(i & 2) + 1] >> 30);
        double expected = sqrt(-2 * log(u)) * (i & 1 ? sin(angle) : cos(angle));
        /* u is rounded to fp32 first: near 1 that moves the radius by up to sqrt(2^-24). */
        assert_true(fabs(rng_normal(5, RNG_STREAM_BENCH, i) - expected) < (u > 0.999 ? 1e-3 : 4e-6));
    }
}

static void normal_numbers_are_the_same_one_by_one_and_together(void **state) {
    (void)state;
    enum { FIRST = 1001, COUNT = 3000 };
    float values[COUNT];
    rng_normals(9, RNG_STREAM_BENCH, FIRST, COUNT, values);
    for (int i = 0; i < COUNT; i++) assert_true(values[i] == rng_normal(9, RNG_STREAM_BENCH, FIRST + i));
}

static void normal_numbers_fall_in_each_tail_as_often_as_they_should(void **state) {
    (void)state;
    int beyond[2] = {0, 0};
    for (int i = 0; i < MOMENT_SAMPLES; i++) {
        double x = rng_normal(7, RNG_STREAM_BENCH, (uint64_t)i);
        beyond[0] += x < -2;
        beyond[1] += x > 2;
    }
    double expected = MOMENT_SAMPLES * 0.022750;                                                          /* one-sided beyond two sigma */
    for (int side = 0; side < 2; side++) assert_true(fabs(beyond[side] - expected) < 5 * sqrt(expected)); /* 5 sigma of a count */
}

static void permute_is_a_bijection(uint64_t count, uint64_t seed, uint64_t stream) {
    uint8_t *hit = memory_allocate(count);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t to = rng_permute(seed, stream, i, count);
        assert_true(to < count);
        assert_int_equal(hit[to], 0);
        hit[to] = 1;
    }
    free(hit);
}

static void permute_is_a_bijection_for_small_and_prime_and_near_power_of_two_counts(void **state) {
    (void)state;
    for (uint64_t count = 1; count <= 70; count++)
        for (uint64_t seed = 0; seed < 4; seed++) permute_is_a_bijection(count, seed, RNG_STREAM_SHUFFLE);
    static const uint64_t primes[] = {97, 127, 251, 257, 1009, 4093, 7919, 65537};
    for (size_t i = 0; i < sizeof primes / sizeof *primes; i++) permute_is_a_bijection(primes[i], i, RNG_STREAM_SAMPLE);
    for (int k = 7; k <= 16; k++)
        for (int d = -1; d <= 1; d++) permute_is_a_bijection((1ull << k) + (uint64_t)(int64_t)d, (uint64_t)k, UINT64_MAX);
}

static void permute_stays_in_range_and_injective_for_huge_counts(void **state) {
    (void)state;
    static const uint64_t counts[] = {UINT64_MAX, 1ull << 63, (1ull << 63) + 1, (1ull << 33) - 1, (1ull << 40) + 1};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        uint64_t to[64];
        for (uint64_t i = 0; i < 64; i++) {
            to[i] = rng_permute(3, RNG_STREAM_SHUFFLE, i % 2 ? counts[c] - 1 - i : i, counts[c]);
            assert_true(to[i] < counts[c]);
            for (uint64_t j = 0; j < i; j++) assert_true(to[i] != to[j]);
        }
    }
}

/* Chi-squared over (index, place) cells for 20,000 seeds. Rows and columns of a permutation matrix sum to one, so there
 * are (n-1)^2 degrees of freedom; mean f and deviation sqrt(2f) give the bound at 6 deviations. */
static void permute_sends_every_index_everywhere_equally_often(void **state) {
    (void)state;
    enum { SEEDS = 20000 };
    for (uint64_t count = 2; count <= 9; count++) {
        int table[9][9] = {{0}};
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            for (uint64_t i = 0; i < count; i++) table[i][rng_permute(seed, RNG_STREAM_SHUFFLE, i, count)]++;
        double expected = (double)SEEDS / (double)count, statistic = 0;
        for (uint64_t i = 0; i < count; i++)
            for (uint64_t j = 0; j < count; j++) statistic += pow(table[i][j] - expected, 2) / expected;
        double freedom = (double)((count - 1) * (count - 1));
        statistic *= (double)(count - 1) / (double)count; /* corrects for the correlation of cells */
        if (statistic > freedom + 6 * sqrt(2 * freedom)) fail_msg("count %d: statistic %f, freedom %f", (int)count, statistic, freedom);
    }
}

static void permute_differs_between_seeds_and_streams(void **state) {
    (void)state;
    int same_seed = 0, same_stream = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        uint64_t to = rng_permute(1, 1, i, 1000);
        same_seed += to == rng_permute(2, 1, i, 1000);
        same_stream += to == rng_permute(1, 2, i, 1000);
    }
    assert_true(same_seed < 10); /* one fixed point is expected; ten has a probability of 1e-7 */
    assert_true(same_stream < 10);
}

/* -- Memory ----------------------------------------------------------------------------------------------------- */

static void allocated_memory_is_zero_and_may_be_empty(void **state) {
    (void)state;
    unsigned char *block = memory_allocate(1000);
    for (int i = 0; i < 1000; i++) assert_int_equal(block[i], 0);
    block[999] = 7;
    block = memory_resize(block, 100000);
    assert_int_equal(block[999], 7);
    block = memory_resize(block, 0);
    assert_non_null(block);
    free(block);
    free(memory_resize(NULL, 10));
    free(memory_allocate(0));
}

static void end_without_memory(size_t bytes) { _exit(bytes > SIZE_MAX / 2 ? ERROR_MEMORY : ERROR_INTERNAL); }

static void a_refused_allocation_calls_the_handler(void **state) {
    (void)state;
    for (int which = 0; which < 2; which++) {
        pid_t child = fork();
        if (child == 0) {
            assert_non_null(freopen("/dev/null", "w", stderr));
            memory_on_refusal(end_without_memory);
            volatile size_t absurd = SIZE_MAX / 2 + 1;
            if (which) memory_allocate(absurd);
            else free(memory_resize(NULL, absurd));
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), ERROR_MEMORY);
    }
}

static void strings_are_formatted_and_copied(void **state) {
    (void)state;
    char *text = memory_format("%s-%05d", "step", 40);
    assert_string_equal(text, "step-00040");
    char *copy = memory_copy_string(text);
    assert_true(copy != text);
    assert_string_equal(copy, text);
    free(copy);
    free(text);
}

static void mapped_memory_is_zero_and_aligned(void **state) {
    (void)state;
    Error error = {0};
    static const size_t sizes[] = {0, 1, 4096, 4097, 5 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *block = memory_map(sizes[i], &error);
        assert_non_null(block);
        assert_int_equal((uintptr_t)block % 64, 0);
        for (size_t j = 0; j < sizes[i]; j++) assert_int_equal(block[j], 0);
        if (sizes[i]) block[sizes[i] - 1] = 1;
        memory_unmap(block, sizes[i]);
    }
    memory_unmap(NULL, 10);
}

static void a_mapping_that_cannot_be_had_is_an_error_with_its_size(void **state) {
    (void)state;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 4096, (size_t)1 << 60};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Error error = {0};
        assert_null(memory_map(sizes[i], &error));
        assert_int_equal(error.code, ERROR_MEMORY);
        char size[32];
        snprintf(size, sizeof size, "%zu bytes", sizes[i]);
        assert_mentions(error.message, size);
    }
}

static void the_peak_covers_memory_that_was_touched(void **state) {
    (void)state;
    Error error = {0};
    enum { BYTES = 32 << 20 };
    int64_t before = memory_peak();
    char *block = memory_map(BYTES, &error);
    assert_non_null(block);
    memset(block, 1, BYTES);
    int64_t after = memory_peak();
    memory_unmap(block, BYTES);
    assert_true(before == -1 || after >= BYTES);
}

/* A folder that looks like / to memory_available_under. */
typedef struct Machine { char root[64]; } Machine;

static void run_shell(const char *format, const char *root) {
    char *command = memory_format(format, root);
    assert_int_equal(system(command), 0);
    free(command);
}

static int machine_setup(void **state) {
    Machine *machine = memory_allocate(sizeof *machine);
    strcpy(machine->root, "/tmp/smelt-test-base-XXXXXX");
    if (!mkdtemp(machine->root)) return -1;
    *state = machine;
    return 0;
}

static int machine_teardown(void **state) {
    Machine *machine = *state;
    run_shell("rm -rf '%s'", machine->root);
    free(machine);
    return 0;
}

static void machine_file(const Machine *machine, const char *path, const char *text) {
    char *full = memory_format("%s/%s", machine->root, path);
    for (char *slash = strchr(full + strlen(machine->root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    free(full);
}

static void without_proc_available_memory_is_unknown(void **state) {
    Machine *machine = *state;
    assert_int_equal(memory_available_under(machine->root), -1);
}

static void without_a_group_available_memory_is_what_the_kernel_says(void **state) {
    Machine *machine = *state;
    machine_file(machine, "proc/meminfo", "MemTotal: 4000 kB\nMemFree: 10 kB\nMemAvailable:    3000 kB\n");
    assert_int_equal(memory_available_under(machine->root), 3000 * 1024);
    machine_file(machine, "proc/self/cgroup", "garbage\n7:cpu:/a\n0::/gone\n");
    assert_int_equal(memory_available_under(machine->root), 3000 * 1024);
}

static void a_version_2_group_limits_memory_but_its_page_cache_does_not_count(void **state) {
    Machine *machine = *state;
    machine_file(machine, "proc/meminfo", "MemAvailable: 3000 kB\n");
    machine_file(machine, "proc/self/cgroup", "0::/job/step\n");
    machine_file(machine, "sys/fs/cgroup/job/step/memory.max", "max\n");
    machine_file(machine, "sys/fs/cgroup/job/step/memory.current", "900000\n");
    machine_file(machine, "sys/fs/cgroup/job/memory.max", "1000000\n");
    machine_file(machine, "sys/fs/cgroup/job/memory.current", "900000\n");
    assert_int_equal(memory_available_under(machine->root), 100000);
    machine_file(machine, "sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 50000\n");
    assert_int_equal(memory_available_under(machine->root), 150000);
    machine_file(machine, "sys/fs/cgroup/job/memory.current", "2000000\n");
    assert_int_equal(memory_available_under(machine->root), 0);
}

static void a_version_1_group_limits_memory(void **state) {
    Machine *machine = *state;
    machine_file(machine, "proc/meminfo", "MemAvailable: 3000 kB\n");
    machine_file(machine, "proc/self/cgroup", "9:name=systemd:/\n4:memory:/on/the/host\n");
    machine_file(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", "800000\n");
    machine_file(machine, "sys/fs/cgroup/memory/memory.usage_in_bytes", "300000\n");
    assert_int_equal(memory_available_under(machine->root), 500000);
}

/* -- Log -------------------------------------------------------------------------------------------------------- */

/* Runs `action` with stderr in a file, or in a terminal when `terminal`; gives what it printed. */
static char *printed(void (*action)(void), bool terminal) {
    char path[] = "/tmp/smelt-test-log-XXXXXX";
    int file = -1, reader;
    if (terminal) {
        reader = posix_openpt(O_RDWR | O_NOCTTY);
        assert_true(reader >= 0 && grantpt(reader) == 0 && unlockpt(reader) == 0);
        file = open(ptsname(reader), O_RDWR | O_NOCTTY);
    } else {
        file = mkstemp(path);
        reader = open(path, O_RDONLY);
        unlink(path);
    }
    assert_true(file >= 0 && reader >= 0);
    int saved = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    action();
    dup2(saved, STDERR_FILENO);
    close(saved);
    char *text = memory_allocate(65536);
    size_t used = 0;
    assert_int_equal(write(file, "\001", 1), 1); /* a terminal delivers in pieces: read up to this mark */
    while (used == 0 || text[used - 1] != '\001') {
        ssize_t length = read(reader, text + used, 65535 - used);
        assert_true(length > 0);
        used += (size_t)length;
    }
    text[used - 1] = '\0';
    close(file);
    close(reader);
    return text;
}

static void three_lines(void) {
    log_info("loss %.2f", 1.5);
    log_warn("slow");
    log_error("bad name 'a\033[2Jb\rc'");
}

static void a_log_off_a_terminal_is_plain_and_free_of_controls(void **state) {
    (void)state;
    char *text = printed(three_lines, false);
    assert_string_equal(text, "loss 1.50\nwarning: slow\nerror: bad name 'a?[2Jb?c'\n");
    free(text);
}

static void a_log_on_a_terminal_has_color_unless_asked_not_to(void **state) {
    (void)state;
    unsetenv("NO_COLOR");
    setenv("TERM", "xterm", 1);
    char *text = printed(three_lines, true);
    assert_non_null(strstr(text, "\033[31merror: \033[0mbad name 'a?[2Jb?c'"));
    free(text);
    setenv("NO_COLOR", "1", 1);
    text = printed(three_lines, true);
    assert_null(strstr(text, "\033[31m"));
    assert_non_null(strstr(text, "error: bad"));
    free(text);
}

static void a_long_line(void) {
    char *large = memory_allocate(20000);
    memset(large, 'y', 19999);
    log_info("%s", large);
    free(large);
}

static void a_line_that_is_too_long_ends_in_dots(void **state) {
    (void)state;
    char *text = printed(a_long_line, false);
    assert_int_equal(strlen(text), 8192);
    assert_string_equal(text + 8192 - 5, "y...\n");
    free(text);
}

static void a_quick_task(void) {
    Progress progress = progress_start("packing", "tokens", 1000);
    for (int i = 0; i <= 1000; i++) progress_update(&progress, i);
    progress_finish(&progress);
}

/* Moves the clock of a Progress instead of waiting. */
static void a_slow_task(void) {
    Progress progress = progress_start("packing", "tokens", 1000);
    progress.start -= 3;
    progress_update(&progress, 300);
    for (int i = 0; i < 100; i++) progress_update(&progress, 301 + i);
    progress.last -= 11;
    progress_update(&progress, 600);
    progress_update(&progress, 1000);
    progress_finish(&progress);
}

static int count_of(const char *text, const char *part) {
    int count = 0;
    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part)) count++;
    return count;
}

static void progress_of_a_quick_task_prints_nothing(void **state) {
    (void)state;
    char *text = printed(a_quick_task, false);
    assert_string_equal(text, "");
    free(text);
}

static void progress_off_a_terminal_prints_a_line_every_ten_seconds_and_at_the_end(void **state) {
    (void)state;
    char *text = printed(a_slow_task, false);
    assert_int_equal(count_of(text, "\n"), 3);
    assert_int_equal(count_of(text, "packing: 300/1.00k tokens, 100 tokens/s, 7.0s left\n"), 1);
    assert_int_equal(count_of(text, "packing: 600/1.00k tokens"), 1);
    assert_int_equal(count_of(text, "packing: 1.00k tokens, 333 tokens/s, took 3.0s\n"), 1);
    assert_null(strchr(text, '\033'));
    free(text);
}

static void progress_on_a_terminal_rewrites_one_line(void **state) {
    (void)state;
    char *text = printed(a_slow_task, true);
    assert_int_equal(count_of(text, "\n"), 1);
    assert_int_equal(count_of(text, "\r\033[Kpacking: 300/1.00k"), 1);
    free(text);
}

static void durations_read_well_and_carry_when_rounded(void **state) {
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } rows[] = {{0, "0.0s"}, {12.34, "12.3s"}, {59.94, "59.9s"}, {59.96, "1m00s"}, {250, "4m10s"}, {3599.4, "59m59s"}, {3599.6, "1h00m"},
        {7380, "2h03m"}, {86399, "1d00h"}, {273600, "3d04h"}, {-1, "unknown"}, {NAN, "unknown"}, {INFINITY, "unknown"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[32];
        log_format_duration(rows[i].seconds, text);
        assert_string_equal(text, rows[i].text);
    }
}

static void long_durations_are_days_and_years(void **state) {
    (void)state;
    static const struct {
        double days;
        const char *text;
    } rows[] = {{3, "3d00h"}, {99, "99d00h"}, {220.4, "220 days"}, {730, "730 days"}, {2226, "6.1 years"}, {73050, "200 years"},
        {5293304, "14492 years"}, {1e9, "2.7e+06 years"}, {INFINITY, "unknown"}, {NAN, "unknown"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[32];
        log_format_long_duration(86400 * rows[i].days, text);
        assert_string_equal(text, rows[i].text);
    }
}

static void byte_sizes_read_well_and_carry_when_rounded(void **state) {
    (void)state;
    static const struct {
        double bytes;
        const char *text;
    } rows[] = {{0, "0 B"}, {512, "512 B"}, {1023, "1023 B"}, {1024, "1.00 KiB"}, {1610612736, "1.50 GiB"}, {1048575, "1.00 MiB"},
        {-2048, "-2.00 KiB"}, {0x1p60, "1.00 EiB"}, {NAN, "unknown"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[32];
        log_format_bytes(rows[i].bytes, text);
        assert_string_equal(text, rows[i].text);
    }
}

static void counts_read_well_and_carry_when_rounded(void **state) {
    (void)state;
    static const struct {
        double count;
        const char *text;
    } rows[] = {{0, "0"}, {7, "7"}, {3.25, "3.25"}, {999, "999"}, {999.7, "1.00k"}, {12300, "12.3k"}, {123456, "123k"}, {999600, "1.00M"},
        {8.84e9, "8.84B"}, {15e12, "15.0T"}, {-12300, "-12.3k"}, {INFINITY, "unknown"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[32];
        log_format_count(rows[i].count, text);
        assert_string_equal(text, rows[i].text);
    }
}

static void the_clock_does_not_run_backwards(void **state) {
    (void)state;
    double before = log_seconds();
    usleep(2000);
    double after = log_seconds();
    assert_true(after - before >= 0.002);
}

int main(void) {
#define MACHINE_TEST(name) cmocka_unit_test_setup_teardown(name, machine_setup, machine_teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_count_of_one_has_a_singular),
        cmocka_unit_test(an_error_keeps_its_code_and_formatted_message),
        cmocka_unit_test(context_goes_before_the_message_and_keeps_the_code),
        cmocka_unit_test(a_new_error_may_quote_the_old_message),
        cmocka_unit_test(a_message_that_does_not_fit_ends_in_dots),
        cmocka_unit_test(a_message_is_not_cut_inside_a_character),
        cmocka_unit_test(philox_matches_the_published_vectors),
        cmocka_unit_test(uniform_numbers_have_the_moments_of_a_uniform),
        cmocka_unit_test(normal_numbers_have_the_moments_of_a_normal),
        cmocka_unit_test(normal_numbers_are_the_formula_of_box_and_muller),
        cmocka_unit_test(normal_numbers_are_the_same_one_by_one_and_together),
        cmocka_unit_test(normal_numbers_fall_in_each_tail_as_often_as_they_should),
        cmocka_unit_test(permute_is_a_bijection_for_small_and_prime_and_near_power_of_two_counts),
        cmocka_unit_test(permute_stays_in_range_and_injective_for_huge_counts),
        cmocka_unit_test(permute_sends_every_index_everywhere_equally_often),
        cmocka_unit_test(permute_differs_between_seeds_and_streams),
        cmocka_unit_test(allocated_memory_is_zero_and_may_be_empty),
        cmocka_unit_test(a_refused_allocation_calls_the_handler),
        cmocka_unit_test(strings_are_formatted_and_copied),
        cmocka_unit_test(mapped_memory_is_zero_and_aligned),
        cmocka_unit_test(a_mapping_that_cannot_be_had_is_an_error_with_its_size),
        cmocka_unit_test(the_peak_covers_memory_that_was_touched),
        MACHINE_TEST(without_proc_available_memory_is_unknown),
        MACHINE_TEST(without_a_group_available_memory_is_what_the_kernel_says),
        MACHINE_TEST(a_version_2_group_limits_memory_but_its_page_cache_does_not_count),
        MACHINE_TEST(a_version_1_group_limits_memory),
        cmocka_unit_test(a_log_off_a_terminal_is_plain_and_free_of_controls),
        cmocka_unit_test(a_log_on_a_terminal_has_color_unless_asked_not_to),
        cmocka_unit_test(a_line_that_is_too_long_ends_in_dots),
        cmocka_unit_test(progress_of_a_quick_task_prints_nothing),
        cmocka_unit_test(progress_off_a_terminal_prints_a_line_every_ten_seconds_and_at_the_end),
        cmocka_unit_test(progress_on_a_terminal_rewrites_one_line),
        cmocka_unit_test(durations_read_well_and_carry_when_rounded),
        cmocka_unit_test(long_durations_are_days_and_years),
        cmocka_unit_test(byte_sizes_read_well_and_carry_when_rounded),
        cmocka_unit_test(counts_read_well_and_carry_when_rounded),
        cmocka_unit_test(the_clock_does_not_run_backwards),
        cmocka_unit_test(a_precise_sum_is_exact_in_any_grouping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
