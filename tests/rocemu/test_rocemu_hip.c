/* The emulator of AMD's GPUs (tools/rocemu) as programs see it: whole kernels through the HIP functions, limits that
 * are kept, wrong kernels that must be caught, counts. A kernel that fails spoils its process, so those run in
 * children: this program again, as `test_rocemu_hip fault NAME`. */
#include <pthread.h>
#include <sched.h>

#include "rocemu/library.h"

/* -- Whole kernels ------------------------------------------------------------------------------------------------- */

static void a_grid_adds_vectors_and_leaves_the_rest(void **state) {
    enum { COUNT = 1000 };
    float a[COUNT], b[COUNT], c[COUNT + 24];
    int count = COUNT;
    (void)state;
    for (int i = 0; i < COUNT; i++) a[i] = (float)i, b[i] = (float)i * 0.7f;
    for (int i = 0; i < COUNT + 24; i++) c[i] = -1;
    float *device_a = device_copy(a, sizeof a), *device_b = device_copy(b, sizeof b), *device_c = device_copy(c, sizeof c);
    void *arguments[] = {&device_c, &device_a, &device_b, &count};
    assert_int_equal(launch(hip.basic, "vector_add", line(4, 256), arguments, NULL), 0);
    hip.hipMemcpyDtoH(c, device_c, sizeof c);
    for (int i = 0; i < COUNT + 24; i++) assert_true(c[i] == (i < COUNT ? a[i] + b[i] / 3.0f : -1));
    assert_int_equal(hip.hipFree(device_a) | hip.hipFree(device_b) | hip.hipFree(device_c), 0);
}

static void a_workgroup_sums_through_lds_and_lane_permutations(void **state) {
    enum { ROWS = 7, COLUMNS = 1000 };
    static float rows[ROWS * COLUMNS];
    float sum[ROWS];
    int columns = COLUMNS;
    (void)state;
    for (int i = 0; i < ROWS * COLUMNS; i++) rows[i] = (float)(i % 13);
    float *device_rows = device_copy(rows, sizeof rows), *device_sum = device_memory(sizeof sum);
    void *arguments[] = {&device_sum, &device_rows, &columns};
    assert_int_equal(launch(hip.basic, "row_sum", line(ROWS, 256), arguments, NULL), 0);
    hip.hipMemcpyDtoH(sum, device_sum, sizeof sum);
    for (int r = 0; r < ROWS; r++) {
        float expected = 0;
        for (int i = 0; i < COLUMNS; i++) expected += rows[r * COLUMNS + i];
        assert_true(sum[r] == expected); /* whole numbers: exact */
    }
    assert_int_equal(hip.hipFree(device_rows) | hip.hipFree(device_sum), 0);
}

static void check_gemm(const char *kernel, int tile) {
    enum { M = 64, N = 96, K = 48 };
    static uint16_t a[M * K], b[N * K];
    static float c[M * N];
    int k = K, n = N;
    for (int i = 0; i < M * K; i++) a[i] = to_bf16((float)small_value(i, 1));
    for (int i = 0; i < N * K; i++) b[i] = to_bf16((float)small_value(i, 2));
    void *device_a = device_copy(a, sizeof a), *device_b = device_copy(b, sizeof b), *device_c = device_memory(sizeof c);
    void *arguments[] = {&device_c, &device_a, &device_b, &k, &n};
    assert_int_equal(launch(hip.basic, kernel, (Shape){N / (unsigned)tile, M / (unsigned)tile, 1, LANES, 1, 1, 0}, arguments, NULL), 0);
    hip.hipMemcpyDtoH(c, device_c, sizeof c);
    for (int i = 0; i < M * N; i++) {
        float expected = 0;
        for (int j = 0; j < K; j++) expected += bf16(a[i / N * K + j]) * bf16(b[i % N * K + j]);
        assert_true(c[i] == expected);
    }
    assert_int_equal(hip.hipFree(device_a) | hip.hipFree(device_b) | hip.hipFree(device_c), 0);
}

static void tiles_multiply_matrices(void **state) {
    (void)state;
    check_gemm("product_32", 32);
    check_gemm("product_16", 16);
}

static void work_items_know_their_place_in_three_dimensions(void **state) {
    enum { WIDTH = 5, HEIGHT = 4, DEPTH = 6, GROUPS = 12, COUNT = GROUPS * WIDTH * HEIGHT * DEPTH };
    u32 out[COUNT];
    u32 *device_out = device_memory(sizeof out);
    void *arguments[] = {&device_out};
    (void)state;
    assert_int_equal(launch(hip.basic, "ids", (Shape){3, 2, 2, WIDTH, HEIGHT, DEPTH, 0}, arguments, NULL), 0);
    hip.hipMemcpyDtoH(out, device_out, sizeof out);
    for (u32 i = 0; i < COUNT; i++)
        assert_int_equal(
            out[i], i % WIDTH | i / WIDTH % HEIGHT << 8 | i / (WIDTH * HEIGHT) % DEPTH << 16 | i / (WIDTH * HEIGHT * DEPTH) << 24);
    hip.hipFree(device_out);
}

static void atomics_of_all_workgroups_meet(void **state) {
    enum { COUNT = 16 * 256 };
    u32 values[COUNT], bins[17] = {0}, expected[17] = {0};
    (void)state;
    random_state = 2;
    for (int i = 0; i < COUNT; i++) {
        expected[(values[i] = (u32)random_bits()) % 16]++;
        if (values[i] > expected[16]) expected[16] = values[i];
    }
    u32 *device_values = device_copy(values, sizeof values), *device_bins = device_copy(bins, sizeof bins);
    void *arguments[] = {&device_bins, &device_values};
    assert_int_equal(launch(hip.basic, "histogram", line(16, 256), arguments, NULL), 0);
    hip.hipMemcpyDtoH(bins, device_bins, sizeof bins);
    assert_memory_equal(bins, expected, sizeof bins);
    assert_int_equal(hip.hipFree(device_values) | hip.hipFree(device_bins), 0);
}

static void dynamic_lds_scratch_and_calls_work(void **state) {
    float in[256], out[256];
    u32 index[LANES], picked[LANES];
    int terms = 5;
    (void)state;
    for (int i = 0; i < 256; i++) in[i] = (float)i;
    for (int i = 0; i < LANES; i++) index[i] = (u32)(i * 11);
    float *device_in = device_copy(in, sizeof in), *device_out = device_memory(sizeof out);
    u32 *device_index = device_copy(index, sizeof index), *device_picked = device_memory(sizeof picked);
    void *reverse[] = {&device_out, &device_in}, *scratch[] = {&device_picked, &device_index}, *calls[] = {&device_out, &terms};
    assert_int_equal(launch(hip.basic, "reverse", (Shape){1, 1, 1, 256, 1, 1, 1024}, reverse, NULL), 0);
    hip.hipMemcpyDtoH(out, device_out, sizeof out);
    for (int i = 0; i < 256; i++) assert_true(out[i] == in[255 - i]);
    assert_int_equal(launch(hip.basic, "scratch", line(1, LANES), scratch, NULL), 0);
    hip.hipMemcpyDtoH(picked, device_picked, sizeof picked);
    for (int i = 0; i < LANES; i++) assert_int_equal(picked[i], index[i] % 32 * 1000 + (u32)i);
    assert_int_equal(launch(hip.basic, "calls", line(1, LANES), calls, NULL), 0);
    hip.hipMemcpyDtoH(out, device_out, LANES * sizeof *out);
    for (int i = 0; i < LANES; i++) {
        float x = (float)i / 64;
        assert_float_equal(out[i], 4 + x * (3 + x * (2 + x)) + 6.125f - 0.5f * 0, 1e-6); /* rounding of four terms */
    }
    assert_int_equal(hip.hipFree(device_in) | hip.hipFree(device_out) | hip.hipFree(device_index) | hip.hipFree(device_picked), 0);
}

static u32 expect_array(u32 lane, const u32 index[LANES]) {
    u32 local[64] = {0}, at = index[lane];
    for (u32 i = 0; i < 64; i++) local[(at + i) % 64] += i * 1000 + lane;
    return local[at % 64] + local[(at + 5) % 64];
}
static u32 expect_pointer(u32 lane, const u32 index[LANES]) {
    u32 at = index[lane], first = at % 16, second = (at + 1) % 16;
    return 2 * at + first * first + second * second;
}
static u32 expect_spills(u32 lane, const u32 index[LANES]) {
    u32 sum = 0;
    for (u32 i = 0; i < 8; i++) sum = sum * 3 + index[(lane + i) % LANES];
    return sum;
}

/* gfx90a reaches scratch by a buffer descriptor and counts the stack in bytes of all lanes; the others have instructions for it. */
static void scratch_holds_arrays_and_registers_that_are_spilled(void **state) {
    static const struct {
        const char *kernel;
        u32 (*expect)(u32 lane, const u32 index[LANES]);
    } kernels[] = {{"scratch_array", expect_array}, {"scratch_pointer", expect_pointer}, {"spills", expect_spills}};
    u32 index[LANES], out[LANES];
    (void)state;
    for (u32 i = 0; i < LANES; i++) index[i] = i * 11;
    u32 *device_index = device_copy(index, sizeof index), *device_out = device_memory(sizeof out);
    void *arguments[] = {&device_out, &device_index};
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        assert_int_equal(launch(hip.basic, kernels[k].kernel, line(1, LANES), arguments, NULL), 0);
        hip.hipMemcpyDtoH(out, device_out, sizeof out);
        for (u32 i = 0; i < LANES; i++)
            if (out[i] != kernels[k].expect(i, index))
                fail_msg("%s: lane %u has %u, not %u", kernels[k].kernel, i, out[i], kernels[k].expect(i, index));
    }
    assert_int_equal(hip.hipFree(device_index) | hip.hipFree(device_out), 0);
}

/* -- HIP ----------------------------------------------------------------------------------------------------------- */

static void the_device_says_what_it_is(void **state) {
    char name[64];
    int count = 0, units = 0, wave = 0, major = 0, lds = 0;
    (void)state;
    assert_int_equal(hip.hipGetDeviceCount(&count), 0);
    assert_int_equal(count, 1);
    hip.hipDeviceGetName(name, sizeof name, 0);
    assert_non_null(strstr(name, "emulated"));
    hip.hipDeviceGetAttribute(&units, 63, 0); /* hipDeviceAttributeMultiprocessorCount */
    hip.hipDeviceGetAttribute(&wave, 87, 0);  /* hipDeviceAttributeWarpSize */
    hip.hipDeviceGetAttribute(&major, 23, 0); /* hipDeviceAttributeComputeCapabilityMajor */
    hip.hipDeviceGetAttribute(&lds, 74, 0);   /* hipDeviceAttributeMaxSharedMemoryPerBlock */
    assert_int_equal(units, on_gfx90a() ? 110 : 304);
    assert_int_equal(wave, 64);
    assert_int_equal(major, 9);
    assert_int_equal(lds, 65536);
}

static void a_captured_graph_replays_launches_and_fills(void **state) {
    enum { COUNT = 256 };
    float ones[COUNT], out[COUNT];
    int count = COUNT;
    void *stream, *graph, *executable;
    (void)state;
    for (int i = 0; i < COUNT; i++) ones[i] = 3;
    float *a = device_copy(ones, sizeof ones), *b = device_copy(ones, sizeof ones);
    void *arguments[] = {&a, &a, &b, &count}; /* a += b / 3 */
    assert_int_equal(hip.hipStreamCreate(&stream), 0);
    assert_int_equal(hip.hipStreamBeginCapture(stream, 0), 0);
    assert_int_equal(hip.hipMemsetD32Async(a, 0x40800000, 1, stream), 0); /* a[0] = 4 */
    assert_int_equal(launch(hip.basic, "vector_add", line(1, 256), arguments, stream), 0);
    assert_int_equal(hip.hipStreamEndCapture(stream, &graph), 0);
    hip.hipMemcpyDtoH(out, a, sizeof out);
    assert_memory_equal(out, ones, sizeof out); /* nothing ran yet */
    assert_int_equal(hip.hipGraphInstantiateWithFlags(&executable, graph, 0), 0);
    assert_int_equal(hip.hipGraphDestroy(graph), 0);
    assert_int_equal(hip.hipGraphLaunch(executable, stream), 0);
    assert_int_equal(hip.hipGraphLaunch(executable, stream), 0);
    hip.hipMemcpyDtoH(out, a, sizeof out);
    assert_true(out[0] == 5);
    assert_true(out[1] == 5);
    assert_int_equal(hip.hipGraphExecDestroy(executable) | hip.hipStreamDestroy(stream) | hip.hipFree(a) | hip.hipFree(b), 0);
}

static void copies_beyond_an_allocation_and_double_frees_are_refused(void **state) {
    char bytes[128] = {0};
    void *memory = device_memory(100);
    (void)state;
    assert_int_equal(hip.hipMemcpyHtoD(memory, bytes, 100), 0);
    assert_int_not_equal(hip.hipMemcpyHtoD(memory, bytes, 101), 0);
    assert_int_not_equal(hip.hipMemcpyDtoH(bytes, (char *)memory + 50, 51), 0);
    assert_int_equal(hip.hipFree(memory), 0);
    assert_int_not_equal(hip.hipFree(memory), 0);
    assert_int_not_equal(hip.hipMemcpyDtoH(bytes, memory, 1), 0);
}

static void launches_beyond_the_limits_are_refused(void **state) {
    float *memory = device_memory(4096);
    void *arguments[] = {&memory, &memory};
    (void)state;
    assert_int_not_equal(launch(hip.basic, "reverse", (Shape){1, 1, 1, 256, 1, 1, 65537}, arguments, NULL), 0);
    assert_int_not_equal(launch(hip.basic, "reverse", (Shape){1, 1, 1, 2048, 1, 1, 0}, arguments, NULL), 0);
    assert_int_not_equal(launch(hip.basic, "reverse", (Shape){0, 1, 1, 64, 1, 1, 0}, arguments, NULL), 0);
    assert_int_not_equal(launch(hip.basic, "no_such_kernel", line(1, 64), arguments, NULL), 0);
    assert_int_equal(hip.hipFree(memory), 0);
}

static void occupancy_follows_registers_and_lds(void **state) {
    void *function;
    int blocks = 0;
    (void)state;
    assert_int_equal(hip.hipModuleGetFunction(&function, hip.basic, "reverse"), 0);
    assert_int_equal(hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 32768), 0);
    assert_int_equal(blocks, 2);
    assert_int_equal(hip.hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0), 0);
    assert_int_equal(blocks, 8);
}

static void code_for_other_gpus_and_other_files_is_refused(void **state) {
    enum { FLAGS = 48 };
    size_t bytes;
    void *module;
    (void)state;
    char *object = read_object("basic", &bytes);
    assert_non_null(object);
    object[FLAGS] = 0x41;                                          /* EF_AMDGPU_MACH of gfx1100 */
    assert_int_equal(hip.hipModuleLoadData(&module, object), 209); /* hipErrorNoBinaryForGpu */
    object[0] = 'X';
    assert_int_equal(hip.hipModuleLoadData(&module, object), 200); /* hipErrorInvalidImage */
    free(object);
}

/* Headers give the file's size, so damage begins behind them. */
static void damaged_code_objects_do_not_break_the_loader(void **state) {
    enum { HEADER = 64, ROUNDS = 300 };
    size_t bytes;
    (void)state;
    char *object = read_object("basic", &bytes), *damaged = malloc(bytes);
    assert_non_null(object);
    assert_non_null(damaged);
    random_state = 3;
    for (int round = 0; round < ROUNDS; round++) {
        void *module = NULL, *function;
        memcpy(damaged, object, bytes);
        for (int i = 0; i < 1 + round % 8; i++) damaged[HEADER + random_bits() % (round % 2 ? 2048 : bytes - HEADER)] = (char)random_bits();
        if (!hip.hipModuleLoadData(&module, damaged)) {
            hip.hipModuleGetFunction(&function, module, "vector_add");
            hip.hipModuleUnload(module);
        }
    }
    free(damaged);
    free(object);
}

/* -- Wrong kernels ------------------------------------------------------------------------------------------------- */

/* What each must be told, and of which lane; -1 where the whole wavefront is wrong. */
static const struct {
    const char *kernel, *message;
    int wavefront, lane;
} faults[] = {
    {"read_past_the_end", "out-of-bounds read of 4 bytes", 1, 63},
    {"write_past_the_end", "out-of-bounds write", 1, 63},
    {"atomic_past_the_end", "out-of-bounds", 0, 0},
    {"scalar_past_the_end", "out-of-bounds read of 4 bytes", 0, -1},
    {"scratch_past_the_end", "out-of-bounds scratch access", 0, 0},
    {"misaligned_write", "misaligned write of 4 bytes", 0, 0},
    {"misaligned_atomic", "misaligned atomic operation of 4 bytes", 0, 0},
    {"freed", "that was freed", 0, 0},
    {"lds_past_the_end", "out-of-bounds LDS write of 4 bytes at 512", 1, 63},
    {"misaligned_lds", "misaligned LDS write", 0, 0},
    {"unwritten_lds", "a read of LDS byte 4, which nothing wrote", 0, 1},
    {"unwritten_register", ", which has bits that nothing wrote, since 0x", 0, 0},
    {"unwritten_address", "an address from register v77, which has bits that nothing wrote\n", 0, 0},
    {"unwritten_scalar_address", "an address from register s40, which has bits that nothing wrote\n", 0, -1},
    {"undefined_through_lds", ", which has bits that nothing wrote, since 0x", 0, 0},
    {"missing_wait_memory", "a missing wait: register v20 is used before an s_waitcnt vmcnt covers", 0, -1},
    {"weak_wait_memory", "a missing wait: register v21 is used before an s_waitcnt vmcnt covers", 0, -1},
    {"missing_wait_lds", "a missing wait: register v20 is used before an s_waitcnt lgkmcnt covers", 0, -1},
    {"missing_wait_barrier", "a missing wait: a barrier is reached before an s_waitcnt lgkmcnt covers", 0, -1},
    {"missing_wait_lds_read", "a missing wait: a barrier is reached before an s_waitcnt lgkmcnt covers", 0, -1},
    {"missing_wait_scalar", "a missing wait: register s20 is used before an s_waitcnt lgkmcnt(0) covers", 0, -1},
    {"race_read_after_write", "reads byte 0 that wavefront 0 wrote", 1, 0},
    {"race_write_after_read", "writes byte 256 that wavefront 0 read", 1, 0},
    {"race_of_writes", "writes byte 0 that wavefront 0 wrote", 1, 0},
    {"divergent_barrier", "a divergent barrier: 32 of the wavefront's 64 lanes", 0, 0},
    {"barriers_apart", "waits at another one", 1, -1},
    {"ended_wavefront", "wavefront 1 does not come to", 0, -1},
    {"exchange_with_half_of_the_lanes", "an exchange that takes from lane 1, which is off", 0, 0},
    {"unknown_instruction", "an instruction that the emulator does not have", 0, -1},
    {"trap", "trapped", 0, -1},
};

#define EXEC_CHANGES "a change of EXEC, which says which lanes go on, depends on bits that nothing wrote"
#define SCC_BRANCH "a branch on SCC, which depends on bits that nothing wrote"
#define VCC_BRANCH "a branch on VCC, which depends on bits that nothing wrote"
#define STORE "a store from register v"
/* Kernels of undefined.c; of each that has one, NAME_away looks alike and is right. */
static const struct {
    const char *kernel, *message;
    int lane;
    bool alone;
} undefined[] = {
    {"compared_lanes", EXEC_CHANGES, 0},
    {"compared_floats", EXEC_CHANGES, 0},
    {"compared_halves", EXEC_CHANGES, 0},
    {"equal", EXEC_CHANGES, 0},
    {"ordered", EXEC_CHANGES, 0},
    {"compared_in_exec", EXEC_CHANGES, 0},
    {"branch_on_vcc", VCC_BRANCH, -1},
    {"chosen", STORE, 0},
    {"least", STORE, 0},
    {"half_stored", STORE, 0},
    {"pair_upper", STORE, 0},
    {"permuted_bytes", STORE, 0},
    {"packed_halves", STORE, 0},
    {"matrix", STORE, 0},
    {"swapped", STORE, 0},
    {"compared_scalars", SCC_BRANCH, -1},
    {"first_lane", SCC_BRANCH, -1},
    {"scalar_logic", SCC_BRANCH, -1},
    {"scalar_chosen", STORE, 0},
    {"first_scc", SCC_BRANCH, -1, true},
    {"first_vcc", VCC_BRANCH, -1, true},
    {"through_lds", EXEC_CHANGES, 0},
    {"through_scratch", EXEC_CHANGES, 0},
    {"added_to_lds", "an atomic operation on LDS byte 0, which has bits that nothing wrote", 0, true},
    {"added", "an atomic operand from register v", 0, true},
    {"lane_number", "a lane number from register v", 0},
    {"permuted_lanes", STORE, 3},
    {"jump", "a jump from register s76, which has bits that nothing wrote", -1, true},
    {"mode", "the mode from register s77, which has bits that nothing wrote", -1, true},
};

/* In the child: runs the kernel and then asks for anything at all, which must be refused too. */
static int run_fault(void *module, const char *kernel) {
    u32 zeros[256] = {0};
    u32 *buffer = device_copy(zeros, sizeof zeros), *gone = buffer;
    void *arguments[] = {&gone};
    bool freed = !strcmp(kernel, "freed");
    if (freed) hip.hipFree(buffer);
    int error = launch(module, freed ? "write_past_the_end" : kernel, line(1, 128), arguments, NULL);
    return error && hip.hipDeviceSynchronize() == error ? 0 : 3;
}

/* In the child: a kernel whose accesses are known. */
static int run_strided(void) {
    enum { COUNT = 64 * LANES };
    u32 zeros[COUNT] = {0};
    u32 *in = device_copy(zeros, sizeof zeros), *out = device_memory(LANES * sizeof *out);
    void *arguments[] = {&out, &in};
    return launch(hip.memory, "strided", line(1, LANES), arguments, NULL);
}

static char program[512];
static void run_child(const char *mode, const char *kernel, const char *environment, char output[4096]) {
    char command[1024];
    snprintf(command, sizeof command, "%s '%s' %s %s 2>&1", environment, program, mode, kernel);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    output[fread(output, 1, 4095, pipe)] = 0;
    if (pclose(pipe)) fail_msg("%s %s: not as expected, or later calls did not fail: %s", mode, kernel, output);
}

static void check_report(const char *mode, const char *kernel, const char *message, int wavefront, int lane) {
    char output[4096], name[96], place[96], last[32] = "\n";
    run_child(mode, kernel, "ROCEMU_ARRIVAL=early", output);
    snprintf(name, sizeof name, "rocemu: kernel %s: ", strcmp(kernel, "freed") ? kernel : "write_past_the_end");
    if (lane >= 0) snprintf(last, sizeof last, ", lane %d\n", lane);
    snprintf(place, sizeof place, "`, workgroup (0, 0, 0), wavefront %d%s", wavefront, last);
    if (!strstr(output, name) || !strstr(output, message) || !strstr(output, "\n    at 0x") || !strstr(output, place))
        fail_msg("%s was reported as: %s", kernel, output);
}

static void every_wrong_kernel_is_caught_with_its_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        check_report("fault", faults[i].kernel, faults[i].message, faults[i].wavefront, faults[i].lane);
}

static void bits_that_nothing_wrote_are_caught_where_they_decide(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof undefined / sizeof *undefined; i++)
        check_report("undefined", undefined[i].kernel, undefined[i].message, 0, undefined[i].lane);
}

static void bits_that_nothing_wrote_may_be_masked_away(void **state) {
    u32 zeros[256] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof undefined / sizeof *undefined; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s_away", undefined[i].kernel);
        u32 *buffer = device_copy(zeros, sizeof zeros);
        void *arguments[] = {&buffer};
        if (!undefined[i].alone && launch(hip.undefined, name, line(1, 128), arguments, NULL)) fail_msg("%s was stopped", name);
        hip.hipFree(buffer);
    }
}

static void wavefronts_that_take_turns_may_stand_at_barriers_apart(void **state) {
    u32 results[128] = {0};
    u32 *buffer = device_copy(results, sizeof results);
    void *arguments[] = {&buffer};
    (void)state;
    assert_int_equal(launch(hip.faults, "barriers_in_turns", line(1, 128), arguments, NULL), 0);
    hip.hipDeviceSynchronize();
    hip.hipMemcpyDtoH(results, buffer, sizeof results);
    for (u32 i = 0; i < 64; i++) assert_int_equal(results[64 + i], i + 1);
    hip.hipFree(buffer);
}

/* In the child: another device, which writes what it sends when the kernel has begun. */
static void *send_to_kernel(void *memory) {
    u32 *buffer = memory;
    while (!__atomic_load_n(&buffer[128], __ATOMIC_ACQUIRE)) sched_yield();
    for (u32 i = 0; i < 64; i++) __atomic_store_n(&buffer[i], 1000 + i, __ATOMIC_RELAXED);
    __atomic_store_n(&buffer[64], 1, __ATOMIC_RELEASE);
    return NULL;
}

/* In the child: a kernel that waits for another device, which sends or is silent. */
static int run_peers(const char *kernel, bool sends) {
    u32 zeros[256] = {0}, results[256], *buffer = NULL;
    pthread_t other;
    int (*allocate)(void **, size_t, unsigned) = NULL;
    *(void **)&allocate = dlsym(hip.library, "hipExtMallocWithFlags");
    if (!allocate || allocate((void **)&buffer, sizeof zeros, 1) || hip.hipMemcpyHtoD(buffer, zeros, sizeof zeros)) return 3;
    if (sends && pthread_create(&other, NULL, send_to_kernel, buffer)) return 3;
    void *arguments[] = {&buffer};
    int error = launch(hip.faults, kernel, line(1, 128), arguments, NULL);
    if (sends) pthread_join(other, NULL);
    if (error) return hip.hipDeviceSynchronize() == error ? 0 : 3;
    int right = 0;
    hip.hipMemcpyDtoH(results, buffer, sizeof results);
    for (u32 i = 0; i < 64; i++) right += results[192 + i] == 1000 + i;
    printf("%d words\n", right);
    return 0;
}

/* In the child: how many threads left what they leave if all accesses arrive early. */
static int run_arrivals(const char *kernel) {
    u32 results[256] = {0};
    int early = 0;
    u32 *buffer = device_copy(results, sizeof results);
    void *module = load("arrivals"), *arguments[] = {&buffer};
    if (!module || launch(module, kernel, line(1, 128), arguments, NULL) || hip.hipMemcpyDtoH(results, buffer, sizeof results)) return 3;
    for (u32 i = 0; i < 128; i++) early += results[i] == 1000 + i;
    printf("%d early\n", early);
    return 0;
}

static void waits_for_other_devices_end_and_come_before_reads(void **state) {
    static const struct {
        const char *mode, *kernel, *environment, *output;
    } rows[] = {
        {"peers", "reads_after_the_signal", "ROCEMU_ARRIVAL=early", "64 words\n"},
        {"peers", "reads_after_the_signal", "ROCEMU_ARRIVAL=late", "64 words\n"},
        {"peers", "reads_before_the_signal", "ROCEMU_ARRIVAL=early", "a read before the signal: the word at 0x"},
        {"peers", "reads_before_the_signal", "ROCEMU_ARRIVAL=late", "a read before the signal: the word at 0x"},
        {"alone", "reads_after_the_signal", "ROCEMU_SPIN=0.5 ROCEMU_ARRIVAL=early", "a spin without an end: the word at 0x"},
        {"alone", "reads_after_the_signal", "ROCEMU_SPIN=0.5 ROCEMU_ARRIVAL=late", "a spin without an end: the word at 0x"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char output[4096];
        run_child(rows[i].mode, rows[i].kernel, rows[i].environment, output);
        if (!strstr(output, rows[i].output)) fail_msg("%s %s, %s: %s", rows[i].mode, rows[i].kernel, rows[i].environment, output);
    }
}

static void accesses_arrive_as_late_as_their_waits_allow(void **state) {
    static const struct {
        const char *kernel;
        int early; /* threads that see the early result although accesses are late; waves go on in turn, so one of two may */
    } rows[] = {{"lds_write", 64}, {"lds_write_waits", 128}, {"lds_read", 64}, {"lds_read_waits", 128}, {"store", 64}, {"store_waits", 128},
        {"load", 64}, {"load_waits", 128}, {"use", 0}, {"use_waits", 128}, {"ends", 128}, {"overlaps", 128}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char output[4096];
        run_child("arrivals", rows[i].kernel, "ROCEMU_CHECK=off ROCEMU_ARRIVAL=early", output);
        if (atoi(output) != 128) fail_msg("%s, early: %s", rows[i].kernel, output);
        run_child("arrivals", rows[i].kernel, "ROCEMU_CHECK=off ROCEMU_ARRIVAL=late", output);
        if (atoi(output) != rows[i].early) fail_msg("%s, late: %s", rows[i].kernel, output);
    }
}

/* A load of 64 lines where two would do, a store of two; LDS accesses of 2 x 32 lanes that all want bank 0; 16 bytes
 * of arguments. */
static void statistics_count_what_a_kernel_moves_and_say_what_bounds_it(void **state) {
    static const char *const lines[] = {"strided: 1 launches, 1 workgroups, 1 wavefronts,", "0 matrix (0 GFLOP), 2 LDS, 2 memory;",
        "memory: 272 bytes read, 256 written, 1 of 2 accesses uncoalesced (66 lines of 128 bytes, 4 at best)",
        "LDS: 512 bytes in 2 accesses, 128 cycles, 124 of them bank conflicts", "modeled for a full MI300X, not measured:", "bound by LDS"};
    char output[4096];
    (void)state;
    run_child("strided", "", "ROCEMU_STATS=1", output);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        if (!strstr(output, lines[i])) fail_msg("no \"%s\" in: %s", lines[i], output);
}

static void a_card_of_less_memory_refuses_what_does_not_fit(void **state) {
    char output[4096];
    (void)state;
    run_child("small", "", "ROCEMU_MEMORY=8", output);
}

/* In the child, with 8 MiB. */
static int run_small(void) {
    void *first = NULL, *second = NULL;
    return hip.hipMalloc(&first, 6 << 20) || hip.hipMalloc(&second, 3 << 20) != 2 /* hipErrorOutOfMemory */ ||
           hip.hipMalloc(&second, 1 << 20);
}

int main(int count, char **arguments) {
    snprintf(program, sizeof program, "%s", arguments[0]);
    if (count > 1 && !open_library()) return 1;
    if (count == 3 && !strcmp(arguments[1], "fault")) return run_fault(hip.faults, arguments[2]);
    if (count == 3 && !strcmp(arguments[1], "undefined")) return run_fault(hip.undefined, arguments[2]);
    if (count == 3 && !strcmp(arguments[1], "arrivals")) return run_arrivals(arguments[2]);
    if (count == 3 && !strcmp(arguments[1], "peers")) return run_peers(arguments[2], true);
    if (count == 3 && !strcmp(arguments[1], "alone")) return run_peers(arguments[2], false);
    if (count == 2 && !strcmp(arguments[1], "strided")) return run_strided();
    if (count == 2 && !strcmp(arguments[1], "small")) return run_small();
    struct CMUnitTest tests[] = {
        cmocka_unit_test(a_grid_adds_vectors_and_leaves_the_rest),
        cmocka_unit_test(a_workgroup_sums_through_lds_and_lane_permutations),
        cmocka_unit_test(tiles_multiply_matrices),
        cmocka_unit_test(work_items_know_their_place_in_three_dimensions),
        cmocka_unit_test(atomics_of_all_workgroups_meet),
        cmocka_unit_test(dynamic_lds_scratch_and_calls_work),
        cmocka_unit_test(scratch_holds_arrays_and_registers_that_are_spilled),
        cmocka_unit_test(the_device_says_what_it_is),
        cmocka_unit_test(a_captured_graph_replays_launches_and_fills),
        cmocka_unit_test(copies_beyond_an_allocation_and_double_frees_are_refused),
        cmocka_unit_test(launches_beyond_the_limits_are_refused),
        cmocka_unit_test(occupancy_follows_registers_and_lds),
        cmocka_unit_test(code_for_other_gpus_and_other_files_is_refused),
        cmocka_unit_test(damaged_code_objects_do_not_break_the_loader),
        cmocka_unit_test(every_wrong_kernel_is_caught_with_its_place),
        cmocka_unit_test(bits_that_nothing_wrote_are_caught_where_they_decide),
        cmocka_unit_test(bits_that_nothing_wrote_may_be_masked_away),
        cmocka_unit_test(wavefronts_that_take_turns_may_stand_at_barriers_apart),
        cmocka_unit_test(waits_for_other_devices_end_and_come_before_reads),
        cmocka_unit_test(accesses_arrive_as_late_as_their_waits_allow),
        cmocka_unit_test(statistics_count_what_a_kernel_moves_and_say_what_bounds_it),
        cmocka_unit_test(a_card_of_less_memory_refuses_what_does_not_fit),
    };
    return run_on_emulator(tests, sizeof tests / sizeof *tests);
}
