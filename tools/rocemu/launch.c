/* Running a grid: workgroups are dealt to the host's threads, each with its own LDS and wavefronts, which are made
 * once per launch and thread. Wavefronts of a workgroup take turns: each runs until a barrier or its end. Registers
 * are set up as the AMDGPU ABI says for the kernel's descriptor. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "hip.h"
#include "undefined.h"

/* -- Description --------------------------------------------------------------------------------------------------- */

static uint64_t hidden_value(const Launch *launch, int kind) {
    if (kind < HIDDEN_GROUP_SIZE) return launch->grid[kind - HIDDEN_BLOCK_COUNT];
    if (kind < HIDDEN_REMAINDER) return launch->block[kind - HIDDEN_GROUP_SIZE];
    if (kind < HIDDEN_GRID_DIMS) return 0;
    if (kind == HIDDEN_GRID_DIMS) return launch->grid[2] * launch->block[2] > 1 ? 3 : launch->grid[1] * launch->block[1] > 1 ? 2 : 1;
    return kind == HIDDEN_SHARED_BASE ? SHARED_APERTURE : PRIVATE_APERTURE;
}

/* The dispatch packet as HSA defines it (hsa_kernel_dispatch_packet_t). */
static void write_packet(Launch *launch) {
    struct {
        uint16_t header, setup, block[3], reserved;
        uint32_t grid[3], private_bytes, group_bytes;
        uint64_t object, kernarg, reserved2, signal;
    } packet = {.header = 2,
        .setup = 3,
        .private_bytes = launch->kernel->private_bytes,
        .group_bytes = launch->lds_bytes,
        .kernarg = (uint64_t)launch->kernarg};
    for (int i = 0; i < 3; i++) packet.block[i] = (uint16_t)launch->block[i], packet.grid[i] = launch->grid[i] * launch->block[i];
    _Static_assert(sizeof packet == sizeof launch->packet, "a dispatch packet has 64 bytes");
    memcpy(launch->packet, &packet, sizeof packet);
}

void launch_prepare(
    Launch *launch, const Kernel *kernel, const uint32_t grid[3], const uint32_t block[3], uint32_t dynamic_lds, uint8_t *kernarg) {
    *launch = (Launch){.kernel = kernel, .lds_bytes = kernel->group_bytes + dynamic_lds, .kernarg = kernarg, .check = check_level()};
    memcpy(launch->grid, grid, sizeof launch->grid);
    memcpy(launch->block, block, sizeof launch->block);
    for (int i = 0; i < kernel->hidden_arguments; i++) {
        uint64_t value = hidden_value(launch, kernel->hidden[i].kind);
        memcpy(kernarg + kernel->hidden[i].offset, &value, kernel->hidden[i].size);
    }
    write_packet(launch);
}

/* -- Registers at the start ---------------------------------------------------------------------------------------- */

/* Bits of the kernel code properties: user scalar registers, in the order they are laid out. */
enum { PRIVATE_BUFFER = 1, DISPATCH_PTR = 2, QUEUE_PTR = 4, KERNARG_PTR = 8, DISPATCH_ID = 16, FLAT_SCRATCH_INIT = 32, PRIVATE_SIZE = 64 };

static int put_pair(Wave *wave, int at, uint64_t value) {
    wave_set_pair(wave, at, value);
    undefined_clear_scalars(wave, at, 2);
    return at + 2;
}
static int put(Wave *wave, int at, uint32_t value) {
    wave->scalar[at] = value;
    undefined_clear_scalars(wave, at, 1);
    return at + 1;
}

static void set_scalars(Wave *wave) {
    const Workgroup *group = wave->group;
    const Launch *launch = group->launch;
    const Kernel *kernel = launch->kernel;
    int at = 0, properties = kernel->properties;
    bool buffer_scratch = kernel->program->architecture->buffer_scratch;
    if (properties & PRIVATE_BUFFER) {
        at = put(wave, put(wave, at, 0), (uint32_t)SCRATCH_SWIZZLED);
        at = put(wave, put(wave, at, ~0u), SCRATCH_ADDS_LANE);
    }
    if (properties & DISPATCH_PTR) at = put_pair(wave, at, (uint64_t)launch->packet);
    if (properties & QUEUE_PTR) at = put_pair(wave, at, 0);
    if (properties & KERNARG_PTR) at = put_pair(wave, at, (uint64_t)launch->kernarg);
    if (properties & DISPATCH_ID) at = put_pair(wave, at, 0);
    if (properties & FLAT_SCRATCH_INIT) at = put_pair(wave, at, 0);
    if (properties & PRIVATE_SIZE) at = put(wave, at, kernel->private_bytes);
    uint32_t preload = kernel->preload & 127, preload_offset = kernel->preload >> 7;
    for (uint32_t i = 0; i < preload; i++) {
        uint32_t value = 0;
        if (4 * (preload_offset + i) + 4 <= kernel->kernarg_bytes) memcpy(&value, launch->kernarg + 4 * (preload_offset + i), 4);
        at = put(wave, at, value);
    }
    uint32_t user = kernel->rsrc2 >> 1 & 31;
    at = (int)user;
    for (int i = 0; i < 3; i++)
        if (kernel->rsrc2 >> (7 + i) & 1) at = put(wave, at, group->id[i]);
    if (kernel->rsrc2 >> 10 & 1) at = put(wave, at, 0);
    if (buffer_scratch && kernel->rsrc2 & 1) at = put(wave, at, 0); /* where the wavefront's scratch begins */
    wave->mode = kernel->rsrc1 >> 12 & 0xff;
    if (!buffer_scratch) put_pair(wave, FLAT_SCRATCH, 0);
    put_pair(wave, EXEC, wave->launch_exec);
}

/* Work-item ids, 10 bits each of x, y, z, in v0. */
static void set_vectors(Wave *wave) {
    const uint32_t *block = wave->group->launch->block;
    uint32_t threads = block[0] * block[1] * block[2];
    wave->launch_exec = 0;
    uint32_t first = (uint32_t)wave->index * LANES, x = first % block[0], y = first / block[0] % block[1],
             z = first / (block[0] * block[1]);
    for (uint32_t lane = 0; lane < LANES && first + lane < threads; lane++) {
        wave->launch_exec |= 1ull << lane;
        wave->vector[0][lane] = x | y << 10 | z << 20;
        if (++x == block[0]) x = 0, y++;
        if (y == block[1]) y = 0, z++;
    }
    wave->defined[0] |= wave->launch_exec;
}

static void start_wave(Wave *wave) {
    const Kernel *kernel = wave->group->launch->kernel;
    wave->state = WAVE_RUNNING;
    wave->pc = (kernel->entry - kernel->program->text_address) / 4;
    wave->scc = false;
    wave->barrier = NULL;
    waits_begin(&wave->outstanding);
    wave->takes_turns = false;
    wave->trace = wave->group->trace ? timing_wave(wave->group->trace, wave->index) : NULL;
    undefined_begin(wave);
    set_vectors(wave);
    set_scalars(wave);
}

/* Registers and LDS without what ran before, so that what is timed depends on no order of threads. */
static void clear_memory(Workgroup *group) {
    memset(group->lds, 0, sizeof group->lds);
    for (int i = 0; i < group->waves; i++) {
        memset(group->wave[i].vector, 0, sizeof group->wave[i].vector);
        set_vectors(&group->wave[i]);
    }
}

/* -- A workgroup --------------------------------------------------------------------------------------------------- */

static void run_wave(Wave *wave) {
    const Instruction *program = wave->program;
    uint64_t executed = 0;
    while (wave->state == WAVE_RUNNING) {
        const Instruction *in = &program[wave->pc];
        wave->pc += in->words;
        executed++;
        in->execute(wave, in);
    }
    wave->executed += executed;
}

/* With all checks: also whether loads have been waited for. */
static void run_wave_checked(Wave *wave) {
    const Instruction *program = wave->program;
    uint64_t executed = 0;
    while (wave->state == WAVE_RUNNING) {
        const Instruction *in = &program[wave->pc];
        wave->pc += in->words;
        executed++;
        if (waits_for_nothing(wave, in) || waits_check(wave, in)) in->execute(wave, in);
    }
    wave->executed += executed;
}

/* With the checks of the launch, and accesses as late as their waits allow. */
static void run_wave_late(Wave *wave) {
    const Instruction *program = wave->program;
    uint64_t executed = 0;
    while (wave->state == WAVE_RUNNING) {
        const Instruction *in = &program[wave->pc];
        wave->pc += in->words;
        executed++;
        if (waits_for_nothing(wave, in)) in->execute(wave, in);
        else if (waits_check(wave, in)) arrivals_execute(wave, in);
    }
    wave->executed += executed;
}

static void run_wave_counted(Wave *wave) {
    const Instruction *program = wave->program;
    uint64_t *executions = wave->group->statistics->executions;
    while (wave->state == WAVE_RUNNING) {
        const Instruction *in = &program[wave->pc];
        executions[wave->pc]++;
        wave->pc += in->words;
        wave->executed++;
        in->execute(wave, in);
    }
}

/* Records what is executed. Where only samples run, matrix products are left out: nobody needs the results. trace may be NULL. */
static void run_wave_traced(Wave *wave) {
    const Instruction *program = wave->program;
    bool samples = wave->group->launch->samples;
    while (wave->state == WAVE_RUNNING) {
        const Instruction *in = &program[wave->pc];
        if (wave->trace) trace_instruction(wave->trace, in, wave->pc);
        wave->pc += in->words;
        wave->executed++;
        if (!samples || !in->operation || !(in->operation->flags & OPERATION_MATRIX)) in->execute(wave, in);
    }
}

static bool failed(const Launch *launch) { return __atomic_load_n(&launch->failure, __ATOMIC_RELAXED); }

/* All wavefronts stand at a barrier or have ended. True when they may go on. */
static bool pass_barrier(Workgroup *group) {
    Wave *waiting = NULL, *ended = NULL;
    bool check = group->launch->check != CHECK_OFF;
    for (int i = 0; i < group->waves; i++) {
        Wave *wave = &group->wave[i];
        if (wave->state == WAVE_FAILED) return false;
        if (wave->state == WAVE_ENDED) {
            ended = wave;
        } else if (!waiting) {
            waiting = wave;
        } else if (check && wave->barrier != waiting->barrier && !(wave->takes_turns && waiting->takes_turns)) {
            check_report(wave, wave->barrier, -1, HIP_ERROR_LAUNCH_FAILURE,
                "a divergent barrier: wavefront %d waits at another one, at 0x%x", waiting->index, waiting->barrier->address);
            return false;
        }
    }
    if (waiting && ended && check)
        check_report(waiting, waiting->barrier, -1, HIP_ERROR_LAUNCH_FAILURE, "a barrier that wavefront %d does not come to: it has ended",
            ended->index);
    return waiting && waiting->state == WAVE_WAITING;
}

static void run_workgroup(Workgroup *group) {
    Launch *launch = group->launch;
    /* Late accesses of a wave arrive when it goes on after a barrier: waves go on in both orders, so that others see what was there before. */
    bool reversed = launch->late && group->id[0] % 2;
    for (int i = 0; i < group->waves; i++) start_wave(&group->wave[i]);
    if (launch->samples) clear_memory(group);
    if (launch->check != CHECK_OFF) shadow_begin(group->shadow, launch->lds_bytes);
    do {
        for (int i = 0; i < group->waves && !failed(launch); i++) {
            Wave *wave = &group->wave[reversed ? group->waves - 1 - i : i];
            if (wave->state == WAVE_WAITING) wave->state = WAVE_RUNNING;
            if (wave->trace || launch->samples) run_wave_traced(wave);
            else if (launch->late) run_wave_late(wave);
            else if (group->statistics) run_wave_counted(wave);
            else if (launch->check == CHECK_ALL) run_wave_checked(wave);
            else run_wave(wave);
        }
        if (failed(launch) || !pass_barrier(group)) break;
        if (launch->check != CHECK_OFF) shadow_barrier(group->shadow, launch->lds_bytes);
        reversed = launch->late && !reversed;
    } while (!failed(launch));
    peers_end(group);
    if (group->statistics) {
        group->statistics->workgroups++;
        group->statistics->waves += (uint64_t)group->waves;
    }
}

/* -- A grid -------------------------------------------------------------------------------------------------------- */

static void workgroup_destroy(Workgroup *group) {
    if (!group) return;
    for (int i = 0; group->wave && i < group->waves; i++) {
        arrivals_destroy(&group->wave[i].arrivals);
        free(group->wave[i].undefined);
        free(group->wave[i].scratch);
        free(group->wave[i].scratch_undefined);
    }
    free(group->wave);
    shadow_destroy(group->shadow);
    statistics_destroy(group->statistics);
    free(group);
}

static Workgroup *workgroup_create(Launch *launch) {
    Workgroup *group = aligned_alloc(64, (sizeof *group + 63) / 64 * 64);
    if (!group) return NULL;
    memset(group, 0, sizeof *group);
    uint32_t threads = launch->block[0] * launch->block[1] * launch->block[2];
    group->launch = launch;
    group->waves = (int)((threads + LANES - 1) / LANES);
    group->wave = aligned_alloc(64, (size_t)group->waves * sizeof *group->wave);
    group->shadow = shadow_create();
    group->statistics = statistics_enabled() ? statistics_create(launch->kernel->program) : NULL;
    bool complete = group->wave && group->shadow && (group->statistics || !statistics_enabled());
    if (group->wave) memset(group->wave, 0, (size_t)group->waves * sizeof *group->wave);
    for (int i = 0; complete && i < group->waves; i++) {
        Wave *wave = &group->wave[i];
        wave->group = group;
        wave->index = i;
        wave->program = launch->kernel->program->instruction;
        wave->undefined = aligned_alloc(64, VECTOR_REGISTERS * sizeof *wave->undefined);
        wave->scratch_bytes = launch->kernel->private_bytes;
        if (wave->scratch_bytes) {
            wave->scratch = calloc(LANES, wave->scratch_bytes);
            wave->scratch_undefined = malloc((size_t)LANES * wave->scratch_bytes);
        }
        complete = wave->undefined && (!wave->scratch_bytes || (wave->scratch && wave->scratch_undefined));
    }
    if (complete) return group;
    workgroup_destroy(group);
    return NULL;
}

static void collect(Launch *launch, const Workgroup *group) {
    for (int i = 0; i < group->waves; i++) __atomic_fetch_add(&launch->executed, group->wave[i].executed, __ATOMIC_RELAXED);
    if (!launch->statistics || !group->statistics) return;
#pragma omp critical(rocemu_statistics)
    statistics_add(launch->statistics, group->statistics);
}

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Workgroups of a launch that runs whole even where only samples are wanted: what counts and places rows for others. */
enum { RUN_ALL = 64 };

static bool is_planted(const Kernel *kernel) {
    const char *name = getenv("ROCEMU_PLANT");
    return name && !strcmp(name, kernel->name);
}

int launch_run(Launch *launch) {
    bool repeats = timing_repeats(launch);
    launch->samples = timing_samples();
    if (repeats && launch->samples) return 0;
    launch->timing = repeats ? NULL : timing_begin(launch);
    launch->late = !timing_enabled() && !statistics_enabled() && arrivals_are_late(ledger_launches(launch->kernel));
    launch->planted = is_planted(launch->kernel);
    int64_t workgroups = (int64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    double begin = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    launch->statistics = statistics_enabled() ? statistics_create(launch->kernel->program) : NULL;
#pragma omp parallel if (workgroups > 1)
    {
        Workgroup *group = workgroup_create(launch);
        if (!group) __atomic_store_n(&launch->failure, HIP_ERROR_OUT_OF_MEMORY, __ATOMIC_RELAXED);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < workgroups; i++) {
            if (!group || failed(launch)) continue;
            group->trace = timing_block(launch->timing, i, group->waves);
            if (launch->samples && !group->trace && workgroups > RUN_ALL) continue;
            group->id[0] = (uint32_t)(i % launch->grid[0]);
            group->id[1] = (uint32_t)(i / launch->grid[0] % launch->grid[1]);
            group->id[2] = (uint32_t)(i / launch->grid[0] / launch->grid[1]);
            run_workgroup(group);
        }
        if (group) collect(launch, group);
        workgroup_destroy(group);
    }
    double seconds = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - begin;
    if (launch->statistics) statistics_finish(launch, seconds);
    ledger_add(launch, seconds);
    timing_finish(launch->timing);
    launch->timing = NULL;
    statistics_destroy(launch->statistics);
    launch->statistics = NULL;
    return launch->failure;
}
