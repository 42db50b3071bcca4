/* The emulator's model of time (tools/rocemu/timing.c) against what is public: rates and latencies of instructions by
 * AMD's instruction set guide and LLVM's tables, conflicts in LDS, rates of memory, and a GEMM of the structure of
 * HipKittens', whose rate on a card was published. Kernels: kernels/timing.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "rocemu/library.h"

static void *timing; /* the module */

static const char *target(void) { return getenv("ROCEMU_GPU") ? getenv("ROCEMU_GPU") : "gfx942"; }
static bool is_gfx950(void) { return !strcmp(target(), "gfx950"); }
static double clock_hz(void) { return is_gfx950() ? 2.4e9 : 2.1e9; }

/* Modeled cycles of a launch. */
static double cycles_of(const char *kernel, Shape shape, void **arguments) {
    void *events[2];
    float milliseconds = 0;
    for (int i = 0; i < 2; i++) assert_int_equal(hip.hipEventCreate(&events[i]), 0);
    assert_int_equal(hip.hipEventRecord(events[0], NULL), 0);
    assert_int_equal(launch(timing, kernel, shape, arguments, NULL), 0);
    assert_int_equal(hip.hipEventRecord(events[1], NULL), 0);
    assert_int_equal(hip.hipEventElapsedTime(&milliseconds, events[0], events[1]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(hip.hipEventDestroy(events[i]), 0);
    return 1e-3 * (double)milliseconds * clock_hz();
}

/* Cycles of one of a chain's instructions, in a workgroup of that many wavefronts: by the difference of two lengths. */
static double chain_cycles(const char *kernel, int waves) {
    enum { SHORT = 4, LONG = 20, UNROLLED = 256 };
    void *zeros = device_memory(4096);
    int n[2] = {SHORT, LONG};
    double cycles[2];
    for (int i = 0; i < 2; i++) cycles[i] = cycles_of(kernel, line(1, (unsigned)waves * LANES), (void *[]){&zeros, &n[i]});
    hip.hipFree(zeros);
    return (cycles[1] - cycles[0]) / ((LONG - SHORT) * UNROLLED);
}

typedef struct Expected {
    const char *kernel;
    int waves;
    double cycles, cycles_950;
} Expected;

/* The loop itself takes some 40 cycles, 4% of 256 instructions of 4 cycles. */
static void compare(const Expected *rows, size_t count, double above) {
    for (size_t i = 0; i < count; i++) {
        double cycles = chain_cycles(rows[i].kernel, rows[i].waves), expected = is_gfx950() ? rows[i].cycles_950 : rows[i].cycles;
        if (cycles < 0.99 * expected || cycles > above * expected)
            fail_msg("%s of %d wavefronts: %.2f modeled cycles instead of %.2f", rows[i].kernel, rows[i].waves, cycles, expected);
    }
}
#define COMPARE(rows, above) compare(rows, sizeof(rows) / sizeof *(rows), above)

/* 64 lanes on 16 units; packed fp32 at twice the rate of single; transcendental at a quarter; two wavefronts of a SIMD take
 * turns, and one alone issues every turn, scalar instructions too. */
static void vector_instructions_have_the_rates_of_the_white_paper(void **state) {
    (void)state;
    static const Expected rows[] = {{"chain_vector", 1, 4, 4}, {"chain_vector", 4, 4, 4}, {"chain_vector", 8, 8, 8},
        {"chain_packed", 4, 4, 4}, {"chain_exp", 1, 16, 16}, {"chain_exp", 8, 32, 32}, {"chain_scalar", 4, 4, 4}, {"chain_nop", 8, 16, 16}};
    COMPARE(rows, 1.05);
}

/* A pass is four cycles; AMD's matrix calculator says 4, 8, 2 and 8 passes for these, and C of the result before costs
 * nothing. Two wavefronts share a SIMD's unit. */
static void matrix_instructions_take_their_passes(void **state) {
    (void)state;
    static const Expected rows[] = {{"chain_matrix_16", 1, 16, 16}, {"chain_matrix_16", 4, 16, 16}, {"chain_matrix_16", 8, 32, 32},
        {"chain_matrix_32", 1, 32, 32}, {"chain_matrix_32", 8, 64, 64}, {"chain_matrix_4", 1, 8, 8}, {"chain_matrix_f32", 1, 32, 32}};
    COMPARE(rows, 1.05);
}

/* LLVM's wait states: a vector instruction that reads the result comes passes + 3 turns of others after it, and the next
 * matrix instruction a turn later. */
static void matrix_results_are_there_after_llvms_wait_states(void **state) {
    (void)state;
    static const Expected rows[] = {
        {"read_matrix_16", 1, 4 * (4 + 4) + 4, 4 * (4 + 4) + 4}, {"read_matrix_32", 1, 4 * (8 + 4) + 4, 4 * (8 + 4) + 4}};
    COMPARE(rows, 1.05);
}

static void vector_instructions_run_beside_matrix_instructions(void **state) {
    (void)state;
    static const Expected rows[] = {{"matrix_beside_3_vectors", 1, 16, 16}, {"matrix_beside_7_vectors", 1, 32, 32},
        {"matrix_beside_3_vectors", 8, 32, 32}, {"matrix_beside_7_vectors", 8, 64, 64}};
    COMPARE(rows, 1.05);
}

/* Reads of 128 bytes a cycle, 256 on gfx950; stores of 128, after 2 cycles for addresses. Lanes 128 bytes apart want one bank, half of them
 * on the 64 banks of gfx950. The wait after 256 reads counts too. */
static void lds_moves_128_bytes_a_cycle_or_256_but_for_conflicts(void **state) {
    (void)state;
    static const Expected rows[] = {{"lds_read_16", 4, 32, 16}, {"lds_read_8", 4, 16, 8}, {"lds_read_4", 4, 8, 4.75},
        {"lds_write_16", 4, 40, 40}, {"lds_write_8", 4, 24, 24}, {"lds_write_4", 4, 16, 16}, {"lds_conflict", 4, 256, 128}};
    COMPARE(rows, 1.08);
}

/* MI300X: 0 to 3 with 20 to 23 and so on; MI355X: 0 to 3, 12 to 15, 20 to 27 (triton-lang/triton #11365). */
static void reads_of_16_bytes_take_quads_of_lanes_as_the_cards_do(void **state) {
    (void)state;
    static const Expected rows[] = {{"lds_read_paired", 4, 32, 16}};
    COMPARE(rows, 1.08);
}

/* -- What the model prints when a process ends --------------------------------------------------------------------- */

static char program[512];
enum { PRINTED = 16 };

/* In the child: 16 blocks of a wavefront, or one of four. */
static int run_printed(const char *kernel) {
    void *zeros = device_memory(4096);
    int n = PRINTED;
    Shape shape = strcmp(kernel, "uneven") ? line(1, 4 * LANES) : line(16, LANES);
    return launch(timing, kernel, shape, (void *[]){&zeros, &n}, NULL);
}

/* Returns the text after `before` in the child's output about the kernel. */
static const char *printed(const char *kernel, const char *before, char output[4096]) {
    char command[1024];
    snprintf(command, sizeof command, "env -u ROCEMU_TIME_CSV ROCEMU_TIME_RANGE=1 '%s' %s 2>&1", program, kernel);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    output[fread(output, 1, 4095, pipe)] = 0;
    const char *at = pclose(pipe) ? NULL : strstr(output, before);
    if (!at) fail_msg("%s printed: %s", kernel, output);
    return at + strlen(before);
}

/* One of 16 blocks multiplies, on one SIMD of the first die's units; the launch takes as long as it. The model assumes that blocks
 * of the other dies are like those of the first. */
static void shares_count_idle_units(void **state) {
    char output[4096];
    (void)state;
    double cycles = atof(printed("uneven", "modeled ", output)), share = atof(printed("uneven", "busy: matrix ", output)),
           units = is_gfx950() ? 256 : 304, expected = 100 * 8 * PRINTED * 256 * 16.0 / (4 * units * cycles);
    assert_true(cycles > 0.99 * PRINTED * 256 * 16 && cycles < 1.05 * PRINTED * 256 * 16);
    if (share < expected - 0.1 || share > expected + 0.1) fail_msg("%.2f%% instead of %.2f%%", share, expected);
}

/* LDS of gfx950 may read half as fast; for gfx942 only latencies are unknown. */
static void ranges_say_what_is_unknown(void **state) {
    char output[4096];
    (void)state;
    double model = atof(printed("lds_read_16", "modeled ", output)), low = 0, high = 0;
    assert_int_equal(sscanf(printed("lds_read_16", " MB)\n", output), "%lf to %lf cycles", &low, &high), 2);
    assert_true(low <= model && low > 0.9 * model);
    double most = is_gfx950() ? 2 : 1;
    if (high < 0.95 * most * model || high > 1.05 * most * model) fail_msg("%.0f to %.0f cycles, modeled %.0f", low, high, model);
}

/* Public pointer chases on MI300X: 64 cycles and some for LDS, some 120 for L1. */
static void latencies_are_those_of_public_pointer_chases(void **state) {
    (void)state;
    static const Expected rows[] = {{"lds_chase", 1, 64, 64}, {"global_chase", 1, 120, 120}};
    COMPARE(rows, 1.2);
}

static void barriers_cost_little_when_all_come_at_once(void **state) {
    (void)state;
    static const Expected rows[] = {{"barriers", 4, 16, 16}};
    COMPARE(rows, 1.5);
}

/* Arguments lie in the host's heap, at another place in each launch here; another value makes each one that is modeled. */
static void cycles_do_not_depend_on_where_arguments_lie(void **state) {
    (void)state;
    enum { LAUNCHES = 8 };
    struct { uint32_t value[16]; } table = {0};
    void *to = device_memory(4 * LANES), *before[LAUNCHES];
    double first = 0;
    for (int i = 0; i < LAUNCHES; i++) {
        before[i] = malloc(sizeof table + sizeof to + 8);
        table.value[0] = (uint32_t)i;
        double cycles = cycles_of("read_arguments", line(1, LANES), (void *[]){&to, &table});
        if (i == 0) first = cycles;
        if (cycles != first) fail_msg("%.0f modeled cycles in launch %d, and %.0f in the first one", cycles, i, first);
    }
    for (int i = 0; i < LAUNCHES; i++) free(before[i]);
    hip.hipFree(to);
}

/* Of the best that was measured: 4.33 TB/s of MI300X's 5.3 (MI355X: in proportion). */
static void a_copy_reaches_most_of_what_memory_gives(void **state) {
    (void)state;
    enum { BYTES = 1 << 29 };
    setenv("ROCEMU_TIME", "sample", 1);
    void *from = device_memory(BYTES), *to = device_memory(BYTES);
    int n = BYTES / 16;
    double rate = 2.0 * BYTES / cycles_of("copy", line(304 * 8, 256), (void *[]){&to, &from, &n}) * clock_hz();
    double best = is_gfx950() ? 6.5e12 : 4.33e12;
    print_message("a copy of 512 MiB: modeled %.2f TB/s\n", 1e-12 * rate);
    assert_in_range((uint64_t)(100 * rate / best), 85, 100);
    hip.hipFree(from), hip.hipFree(to);
    setenv("ROCEMU_TIME", "1", 1);
}

static void fill_operand(uint16_t *values, int count, int seed) {
    for (int i = 0; i < count; i++) values[i] = to_bf16((float)small_value(i, seed));
}

static void the_gemm_of_published_structure_multiplies(void **state) {
    (void)state;
    enum { M = 256, N = 256, K = 192 };
    uint16_t *a = malloc(2 * M * K), *b = malloc(2 * N * K);
    float *c = malloc(4 * M * N);
    fill_operand(a, M * K, 1);
    fill_operand(b, N * K, 2);
    void *device_a = device_copy(a, 2 * M * K), *device_b = device_copy(b, 2 * N * K), *device_c = device_memory(4 * M * N);
    int k = K, n = N;
    long tiles = 1;
    assert_int_equal(launch(timing, "ping_pong", line(1, 512), (void *[]){&device_c, &device_a, &device_b, &k, &n, &tiles}, NULL), 0);
    assert_int_equal(hip.hipMemcpyDtoH(c, device_c, 4 * M * N), 0);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int x = 0; x < K; x++) sum += bf16(a[i * K + x]) * bf16(b[j * K + x]);
            if (c[i * N + j] != sum) fail_msg("row %d, column %d: %g instead of %g", i, j, (double)c[i * N + j], (double)sum);
        }
    hip.hipFree(device_a), hip.hipFree(device_b), hip.hipFree(device_c);
    free(a), free(b), free(c);
}

/* HipKittens, on an MI325X, which computes as an MI300X does: 714 TFLOP/s at 4096 cubed, 749 at 8192. The model, which knows
 * no power limit, may say a third more, and not less. */
static void the_gemm_of_published_structure_has_the_rate_of_its_order(void **state) {
    (void)state;
    if (is_gfx950()) skip(); /* the published kernel there has another structure */
    setenv("ROCEMU_TIME", "sample", 1);
    static const struct {
        int size;
        double published;
    } rows[] = {{4096, 714e12}, {8192, 749e12}};
    for (size_t i = 0; i < 2; i++) {
        int k = rows[i].size, n = k;
        long tiles = n / 256 * (n / 256);
        size_t elements = (size_t)n * (size_t)n;
        void *a = device_memory(2 * elements), *b = device_memory(2 * elements), *c = device_memory(4 * elements);
        double cycles = cycles_of("ping_pong", line((unsigned)tiles, 512), (void *[]){&c, &a, &b, &k, &n, &tiles});
        double rate = 2.0 * k * n * (double)n / cycles * clock_hz();
        print_message("%d cubed: modeled %.0f TFLOP/s, published %.0f\n", k, 1e-12 * rate, 1e-12 * rows[i].published);
        assert_true(rate > rows[i].published && rate < 4.0 / 3 * rows[i].published);
        hip.hipFree(a), hip.hipFree(b), hip.hipFree(c);
    }
    setenv("ROCEMU_TIME", "1", 1);
}

/* LLVM's scheduling model, which knows one wavefront and no memory, says the same of matrix instructions. */
static void llvm_mca_agrees_on_matrix_instructions(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int latency, rate;
    } rows[] = {
        {"v_mfma_f32_16x16x16_bf16 v[4:7], v[0:1], v[2:3], v[4:7]", 4 + 4, 4},
        {"v_mfma_f32_32x32x8_bf16 v[12:27], v[0:1], v[2:3], v[12:27]", 8 + 4, 8},
        {"v_mfma_f32_4x4x4_16b_bf16 v[4:7], v[0:1], v[2:3], v[4:7]", 2 + 4, 2},
        {"v_mfma_f32_16x16x4_f32 v[4:7], v0, v2, v[4:7]", 8 + 4, 8},
    };
    const char *mca = getenv("ROCEMU_MCA");
    if (!mca || access(mca, X_OK)) {
        print_message("skipped: ROCEMU_MCA names no llvm-mca\n");
        skip();
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char command[512], text[256];
        int uops = 0, latency = 0;
        double rate = 0;
        snprintf(command, sizeof command, "echo '%s' | %s -mtriple=amdgcn -mcpu=gfx942 -instruction-info -iterations=1", rows[i].text, mca);
        FILE *output = popen(command, "r");
        assert_non_null(output);
        while (fgets(text, sizeof text, output))
            if (strstr(text, "v_mfma") && sscanf(text, "%d %d %lf", &uops, &latency, &rate) == 3) break;
        assert_int_equal(pclose(output) == -1, 0);
        if (latency != rows[i].latency || (int)rate != rows[i].rate)
            fail_msg("%s: llvm-mca says latency %d, one every %g turns; the model %d and %d", rows[i].text, latency, rate, rows[i].latency,
                rows[i].rate);
    }
}

int main(int count, char **arguments) {
    snprintf(program, sizeof program, "%s", arguments[0]);
    struct CMUnitTest tests[] = {
        cmocka_unit_test(vector_instructions_have_the_rates_of_the_white_paper),
        cmocka_unit_test(matrix_instructions_take_their_passes),
        cmocka_unit_test(matrix_results_are_there_after_llvms_wait_states),
        cmocka_unit_test(vector_instructions_run_beside_matrix_instructions),
        cmocka_unit_test(lds_moves_128_bytes_a_cycle_or_256_but_for_conflicts),
        cmocka_unit_test(reads_of_16_bytes_take_quads_of_lanes_as_the_cards_do),
        cmocka_unit_test(shares_count_idle_units),
        cmocka_unit_test(ranges_say_what_is_unknown),
        cmocka_unit_test(latencies_are_those_of_public_pointer_chases),
        cmocka_unit_test(barriers_cost_little_when_all_come_at_once),
        cmocka_unit_test(cycles_do_not_depend_on_where_arguments_lie),
        cmocka_unit_test(a_copy_reaches_most_of_what_memory_gives),
        cmocka_unit_test(the_gemm_of_published_structure_multiplies),
        cmocka_unit_test(the_gemm_of_published_structure_has_the_rate_of_its_order),
        cmocka_unit_test(llvm_mca_agrees_on_matrix_instructions),
    };
    setenv("ROCEMU_TIME", "1", 1);
    if (count < 2) setenv("ROCEMU_TIME_CSV", "/dev/null", 1);
    setenv("ROCEMU_CHECK", "off", 1); /* groups of wavefronts that are a barrier apart */
    if (emulator_is_given() && (!open_library() || !(timing = load("timing")))) return 1;
    if (count == 2) return run_printed(arguments[1]);
    return run_on_emulator(tests, sizeof tests / sizeof *tests);
}
