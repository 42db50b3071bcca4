/* The benchmarks: that they measure what they say, write what they measured, and refuse what they cannot do. Speeds
 * themselves depend on the machine; what is tested is that they are there, and everything about them that does not. */
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>

#include "backend/backend.h"
#include "bench/bench.h"
#include "data/shard_writer_internal.h"
#include "support/data_files.h"
#include "support/files.h"
#include "support/mentions.h"
#include "support/process.h"

static char folder[] = "/tmp/smelt-test-bench-XXXXXX";

static int make_folder(void **state) {
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char *command = memory_format("rm -r %s", folder);
    int result = system(command);
    free(command);
    return result;
}

static char *path_of(const char *name) { return memory_format("%s/%s", folder, name); }

/* Runs `smelt bench` with arguments that are separated by spaces; %s in them is the folder. */
static ProcessResult bench(const char *arguments) {
    enum { MOST = 32 };
    char *words[MOST] = {process_smelt(), "bench"}, *line = memory_format("%s", arguments), *rest = line;
    int count = 2;
    for (char *word; (word = strsep(&rest, " ")) && count < MOST - 1;) {
        char *place = strstr(word, "%s");
        words[count++] = place ? memory_format("%.*s%s%s", (int)(place - word), word, folder, place + 2) : memory_copy_string(word);
    }
    Process process = process_start(words);
    ProcessResult result = process_finish(&process);
    for (int i = 2; i < count; i++) free(words[i]);
    free(words[0]);
    free(line);
    return result;
}

static void expect_code(const char *arguments, int code, const char *told) {
    ProcessResult result = bench(arguments);
    if (result.code != code) print_message("%s%s", result.output, result.errors);
    assert_int_equal(result.code, code);
    if (told) assert_mentions(result.errors, told);
    process_free(&result);
}

static json_t *read_json(const char *name) {
    char *path = path_of(name);
    json_error_t error;
    json_t *json = json_load_file(path, 0, &error);
    if (!json) fail_msg("%s: %s", path, error.text);
    free(path);
    return json;
}

static double number_of(const json_t *row, const char *key) {
    const json_t *value = json_object_get(row, key);
    if (!json_is_number(value)) fail_msg("%s is no number", key);
    return json_number_value(value);
}

static const char *text_of(const json_t *row, const char *key) {
    const json_t *value = json_object_get(row, key);
    if (!json_is_string(value)) fail_msg("%s is no text", key);
    return json_string_value(value);
}

static char *read_result(const char *name) {
    char *path = path_of(name), *text = read_text(path);
    free(path);
    return text;
}

static void write_input(const char *name, const char *text) {
    char *path = path_of(name);
    write_text(path, text);
    free(path);
}

#define QUICK " device=cpu seconds=0.01 repeats=3"
static const char small_llama[] =
    "model: {family: llama, layers: 2, width: 32, heads: 2, kv_heads: 1, ffn: 64, vocabulary: 300}\ndata: {length: 16}\n"
    "batch: {tokens: 64, sequences: 2}\n";

/* -- Lists --------------------------------------------------------------------------------------------------------- */

static void expect_list(const char *text, int count, const int64_t *expected) {
    Error error = {0};
    BenchList list;
    assert_true(bench_list(&list, "m", text, 1 << 20, &error));
    assert_int_equal(list.count, count);
    for (int i = 0; i < count; i++) assert_int_equal(list.numbers[i], expected[i]);
}

static void lists_have_numbers_and_ranges(void **state) {
    (void)state;
    expect_list("7", 1, (int64_t[]){7});
    expect_list("64,1Ki,3", 3, (int64_t[]){64, 1024, 3});
    expect_list("16..100", 3, (int64_t[]){16, 32, 64});
    expect_list("8..20+4,1", 5, (int64_t[]){8, 12, 16, 20, 1});
}

static void lists_refuse_what_is_no_number_in_range(void **state) {
    (void)state;
    const char *const wrong[] = {
        "", ",", "8,", "0", "-4", "abc", "8..", "..8", "16..8", "1..8+0", "1..8+", "2097152", "1..1048576+1", "1.5"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Error error = {0};
        BenchList list;
        if (bench_list(&list, "m", wrong[i], 1 << 20, &error)) fail_msg("'%s' was taken", wrong[i]);
        assert_int_equal(error.code, ERROR_USAGE);
        assert_mentions(error.message, "m=");
    }
}

/* -- Timing -------------------------------------------------------------------------------------------------------- */

typedef struct Sleeps {
    int64_t calls, next;
    bool in_order;
} Sleeps;

static void sleep_a_little(void *context, int64_t call) {
    Sleeps *sleeps = context;
    sleeps->in_order = sleeps->in_order && call == sleeps->next++;
    sleeps->calls++;
    process_sleep(2e-3);
}

static void a_call_takes_as_long_as_it_sleeps(void **state) {
    (void)state;
    BenchOptions options = {.repeats = 5, .seconds = 0.05};
    Bench timed = {.options = &options, .device = device_cpu()};
    Sleeps sleeps = {.in_order = true};
    BenchTime time;
    Error error = {0};
    double start = log_seconds();
    assert_true(bench_time(&timed, sleep_a_little, &sleeps, &time, &error));
    assert_true(time.best >= 2e-3 && time.best <= time.seconds); /* a sleep is never shorter */
    assert_true(2e-3 * (double)time.calls <= log_seconds() - start);
    assert_int_equal(time.calls, sleeps.calls);
    assert_true(sleeps.in_order);
}

static void sets_of_an_arena_rotate_without_overlap(void **state) {
    (void)state;
    BenchArena arena;
    Error error = {0};
    assert_true(bench_arena_open(&arena, device_cpu(), 3 * 256, false, GEMM_BF16, &error));
    assert_int_equal(arena.bytes, 3 * 256);
    for (int64_t call = 0; call < 7; call++) assert_ptr_equal(bench_arena_set(&arena, 256, call), arena.memory + call % 3 * 256);
    bench_arena_close(&arena);
}

static void an_arena_is_filled_with_normal_numbers_to_its_end(void **state) {
    (void)state;
    enum { COUNT = 300032 };
    BenchArena arena;
    Error error = {0};
    assert_true(bench_arena_open(&arena, device_cpu(), COUNT * (int64_t)sizeof(float), false, GEMM_F32, &error));
    const float *values = (const float *)arena.memory;
    double sum = 0, squares = 0;
    for (int i = 0; i < COUNT; i++) sum += values[i], squares += (double)values[i] * values[i];
    assert_true(fabs(sum / COUNT) < 0.01);         /* five standard errors of 1 / sqrt(300,000) */
    assert_true(fabs(squares / COUNT - 1) < 0.02); /* likewise, of sqrt(2 / 300,000) */
    assert_true(values[COUNT - 1] != 0);
    bench_arena_close(&arena);
}

/* -- GEMM ---------------------------------------------------------------------------------------------------------- */

static void gemm_measures_every_shape_and_checks_it(void **state) {
    (void)state;
    expect_code("gemm m=16,33 n=8 k=40 layout=all cache=hot json=%s/gemm.json" QUICK, 0, NULL);
    json_t *json = read_json("gemm.json"), *rows = json_object_get(json, "rows"), *row;
    size_t i;
    int own = 0;
    json_array_foreach(rows, i, row) {
        own += !strcmp(text_of(row, "provider"), "own"); /* others where their libraries are installed */
        double flops = 2 * number_of(row, "m") * number_of(row, "n") * number_of(row, "k");
        assert_string_equal(text_of(row, "check"), "ok");
        assert_true(number_of(row, "best_tflops") >= number_of(row, "tflops") && number_of(row, "tflops") > 0);
        /* JSON has nine digits of both. */
        assert_true(fabs(number_of(row, "tflops") * 1e12 * number_of(row, "us") * 1e-6 / flops - 1) < 1e-6);
    }
    assert_int_equal(own, 2 * 3 * 2); /* shapes, layouts, types */
    json_decref(json);
}

static void one_provider_can_be_asked_for(void **state) {
    (void)state;
    expect_code("gemm m=16 n=8 k=24 provider=own cache=hot json=%s/own.json" QUICK, 0, NULL);
    json_t *json = read_json("own.json"), *rows = json_object_get(json, "rows");
    assert_int_equal(json_array_size(rows), 2); /* bf16 and fp32 */
    assert_string_equal(text_of(json_array_get(rows, 0), "provider"), "own");
    assert_string_equal(text_of(json_array_get(rows, 1), "provider"), "own");
    json_decref(json);
}

static void what_only_gpus_have_is_refused_on_a_cpu(void **state) {
    (void)state;
    expect_code("gemm type=fp8 device=cpu", ERROR_USAGE, "fp8");
    expect_code("memory kernel=upload_pinned device=cpu", ERROR_USAGE, "upload_pinned");
}

static void results_name_the_machine_and_the_settings(void **state) {
    (void)state;
    expect_code("gemm m=16 type=bf16 cache=hot json=%s/machine.json csv=%s/machine.csv" QUICK, 0, NULL);
    json_t *json = read_json("machine.json"), *machine = json_object_get(json, "machine");
    assert_string_equal(text_of(json, "benchmark"), "gemm");
    assert_true(strlen(text_of(machine, "cpu")) > 0 && number_of(machine, "threads") >= 1 && number_of(machine, "memory_bytes") > 0);
    assert_true(json_is_null(json_object_get(machine, "gpu")));
    assert_string_equal(text_of(json_object_get(json, "settings"), "cache"), "hot");
    json_decref(json);
    char *csv = read_result("machine.csv");
    assert_int_equal(process_lines(csv, ""), 2);
    assert_non_null(strstr(csv, "tflops"));
    assert_non_null(strstr(csv, "benchmark,device,cpu,threads,host,time\n"));
    assert_non_null(strstr(csv, ",gemm,cpu,"));
    free(csv);
}

static void a_plot_is_a_picture_with_a_curve_for_each_series(void **state) {
    (void)state;
    expect_code("gemm m=16..64 layout=all type=bf16 cache=hot --plot %s/plot.svg" QUICK, 0, NULL);
    char *svg = read_result("plot.svg");
    assert_int_equal(strncmp(svg, "<svg ", 5), 0);
    assert_non_null(strstr(svg, "</svg>"));
    assert_non_null(strstr(svg, "bf16 own nt"));
    assert_non_null(strstr(svg, "bf16 own tn"));
    int circles = 0;
    for (const char *at = svg; (at = strstr(at, "<circle")); at++) circles++;
    assert_int_equal(circles, 3 * 3);
    free(svg);
}

/* Each of the two gradients of a layer costs what its forward GEMM does. */
static void gemms_of_a_model_are_those_of_its_step(void **state) {
    (void)state;
    write_input("llama.yaml", small_llama);
    expect_code("gemm %s/llama.yaml type=bf16 cache=hot json=%s/model.json" QUICK, 0, NULL);
    json_t *json = read_json("model.json"), *rows = json_object_get(json, "rows"), *row;
    double work[3] = {0}, forward;
    size_t i;
    json_array_foreach(rows, i, row) {
        const char *layout = text_of(row, "layout");
        int form = !strcmp(layout, "nt") ? 0 : !strcmp(layout, "nn") ? 1 : 2;
        work[form] += number_of(row, "m") * number_of(row, "n") * number_of(row, "k") * number_of(row, "calls");
    }
    /* 32 tokens by: queries, keys, values (64 x 32), output (32 x 32), gate and up (128 x 32), down (32 x 64),
     * twice; the head (300 x 32). */
    forward = 32.0 * (2 * (64 * 32 + 32 * 32 + 128 * 32 + 32 * 64) + 300 * 32);
    for (int form = 0; form < 3; form++) assert_true(work[form] == forward);
    json_decref(json);
}

/* -- Others -------------------------------------------------------------------------------------------------------- */

static void memory_counts_bytes_as_stream_does(void **state) {
    (void)state;
    expect_code("memory bytes=96Ki json=%s/memory.json" QUICK, 0, NULL);
    json_t *json = read_json("memory.json"), *rows = json_object_get(json, "rows"), *row;
    static const char *const names[] = {"copy", "scale", "add", "triad", "read", "write"};
    assert_int_equal(json_array_size(rows), 6);
    size_t i;
    json_array_foreach(rows, i, row) {
        assert_string_equal(text_of(row, "kernel"), names[i]);
        assert_true(number_of(row, "bytes") == 96 << 10); /* two, three or one array of whole pages */
        assert_true(fabs(number_of(row, "gbps") * number_of(row, "us") * 1e3 / number_of(row, "bytes") - 1) < 1e-6);
    }
    json_decref(json);
}

static void attention_counts_what_causality_leaves(void **state) {
    (void)state;
    expect_code("attention lengths=32 head_dims=16 heads=4 kv_heads=2 tokens=64 json=%s/attention.json" QUICK, 0, NULL);
    json_t *json = read_json("attention.json"), *rows = json_object_get(json, "rows"), *row;
    static const int gemms[] = {2, 5};
    assert_int_equal(json_array_size(rows), 2);
    size_t i;
    json_array_foreach(rows, i, row) {
        double flops = 2.0 * gemms[i] * (32 * 33 / 2) * 2 * 4 * 16; /* pairs, sequences, heads, channels */
        assert_string_equal(text_of(row, "pass"), i ? "backward" : "forward");
        assert_true(fabs(number_of(row, "tflops") * 1e6 * number_of(row, "us") / flops - 1) < 1e-6);
    }
    json_decref(json);
}

static void optimizers_move_the_bytes_of_their_state(void **state) {
    (void)state;
    expect_code("optimizer width=64 parameters=8192 json=%s/optimizer.json" QUICK, 0, NULL);
    json_t *json = read_json("optimizer.json"), *rows = json_object_get(json, "rows");
    const json_t *adamw = json_array_get(rows, 0), *muon = json_array_get(rows, 1);
    assert_string_equal(text_of(adamw, "optimizer"), "adamw");
    assert_true(
        number_of(adamw, "bytes") == 30 * 8192); /* master, momentum, variance read and written, gradient read, bf16 weights written */
    assert_true(number_of(muon, "bytes") == 22 * 8192); /* no variance */
    json_decref(json);
}

static void storage_leaves_nothing_behind(void **state) {
    (void)state;
    char *place = path_of("storage");
    assert_int_equal(mkdir(place, 0700), 0);
    expect_code("storage %s/storage bytes=1Mi block=64Ki reads=20 csv=%s/storage.csv", 0, NULL);
    assert_int_equal(rmdir(place), 0); /* which is empty again */
    char *csv = read_result("storage.csv");
    assert_int_equal(process_lines(csv, ""), 1 + 7);
    free(csv);
    free(place);
}

/* Scatter 4, 1 Mi tokens of 2 bytes: 8 MiB at the rate of the row. */
static void storage_tells_the_step_that_it_would_hold_up(void **state) {
    (void)state;
    expect_code("storage %s bytes=1Mi block=64Ki reads=20 step_tokens=1Mi token_bytes=2 scatter=4 json=%s/step.json", 0, NULL);
    json_t *json = read_json("step.json"), *rows = json_object_get(json, "rows"), *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        bool writes = strstr(text_of(row, "test"), "write");
        assert_int_equal(json_is_null(json_object_get(row, "step_s")), writes);
        if (!writes) assert_true(fabs(number_of(row, "step_s") * 1e9 * number_of(row, "gbps") / (8 * 1048576) - 1) < 1e-6);
    }
    json_decref(json);
}

static void storage_refuses_a_folder_that_is_not_there(void **state) {
    (void)state;
    expect_code("storage %s/none", ERROR_DATA, "none");
    expect_code("storage", ERROR_USAGE, "FOLDER");
}

/* -- The loader ---------------------------------------------------------------------------------------------------- */

static void write_tokens(const char *prefix, int64_t count) {
    Error error = {0};
    ShardWriter *writer = shard_writer_open(prefix, 2, &error);
    assert_non_null(writer);
    for (int32_t i = 0; i < count; i++) assert_true(shard_writer_document(writer, &i, 1, &error));
    assert_true(shard_writer_finish(writer, &error));
}

static void the_loader_reads_each_sample_cold_and_warm(void **state) {
    (void)state;
    char *prefix = path_of("tokens");
    write_tokens(prefix, 5000);
    expect_code("loader %s/tokens length=64 sequences=4 samples=10 step_tokens=1024 json=%s/loader.json", 0, NULL);
    json_t *json = read_json("loader.json");
    const json_t *rows = json_object_get(json, "rows");
    assert_int_equal(json_array_size(rows), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(rows, i);
        assert_string_equal(text_of(row, "test"), i ? "warm" : "cold");
        assert_true(number_of(row, "samples") == 12);                                                 /* whole batches */
        assert_float_equal(number_of(row, "tokens_per_s") * number_of(row, "seconds"), 12 * 64, 0.1); /* as printed */
        assert_float_equal(number_of(row, "step_s"), 1024 / number_of(row, "tokens_per_s"), 1e-3 * number_of(row, "step_s"));
    }
    json_decref(json);
    free(prefix);
}

static void the_loader_refuses_what_is_no_shard(void **state) {
    (void)state;
    expect_code("loader %s/none", ERROR_DATA, "none");
    expect_code("loader", ERROR_USAGE, "SHARDS");
    char *prefix = path_of("few");
    write_tokens(prefix, 10);
    expect_code("loader %s/few length=64", ERROR_DATA, "few has 10 tokens");
    free(prefix);
}

/* -- Collectives --------------------------------------------------------------------------------------------------- */

static Process start_rank(int rank, int ranks, int port, const char *json) {
    char *words[] = {"/usr/bin/env", memory_format("RANK=%d", rank), memory_format("WORLD_SIZE=%d", ranks),
        memory_format("LOCAL_RANK=%d", rank), "MASTER_ADDR=127.0.0.1", memory_format("MASTER_PORT=%d", port), process_smelt(), "bench",
        "collective", "device=cpu", "bytes=4,4Ki", "seconds=0.01", "repeats=3", "threads=1", memory_format("json=%s/%s", folder, json),
        NULL};
    Process process = process_start(words);
    for (int i = 1; words[i]; i++)
        if (i <= 3 || i == 5 || i == 6 || !words[i + 1]) free(words[i]);
    return process;
}

/* Bus bandwidth is what nccl-tests makes of algorithm bandwidth. */
static void collectives_are_right_and_counted_as_nccl_tests_does(void **state) {
    (void)state;
    enum { RANKS = 3 };
    static const struct {
        const char *name;
        double factor;
    } operations[] = {{"all_reduce", 2 * 2 / 3.0}, {"reduce_scatter", 2 / 3.0}, {"all_gather", 2 / 3.0}, {"broadcast", 1},
        {"all_to_all", 2 / 3.0}, {"send_recv", 1}};
    Process ranks[RANKS];
    int port = 20000 + getpid() % 20000;
    for (int rank = 0; rank < RANKS; rank++) ranks[rank] = start_rank(rank, RANKS, port, "collective.json");
    for (int rank = 0; rank < RANKS; rank++) {
        ProcessResult result = process_finish(&ranks[rank]);
        if (result.code) print_message("%s", result.errors);
        assert_int_equal(result.code, 0);
        assert_int_equal(process_lines(result.output, ""), rank ? 0 : 1 + 6 * 2); /* the first rank speaks for all */
        process_free(&result);
    }
    json_t *json = read_json("collective.json"), *rows = json_object_get(json, "rows"), *row;
    assert_int_equal(json_array_size(rows), 6 * 2);
    size_t i;
    json_array_foreach(rows, i, row) {
        assert_string_equal(text_of(row, "operation"), operations[i / 2].name);
        assert_true(number_of(row, "wrong") == 0 && number_of(row, "ranks") == RANKS);
        if (i % 2 == 0) continue; /* one element among three ranks: nothing but a start and an end */
        assert_true(fabs(number_of(row, "busbw") / number_of(row, "algbw") - operations[i / 2].factor) < 1e-6);
        assert_true(fabs(number_of(row, "algbw") * number_of(row, "time") * 1e3 / number_of(row, "size") - 1) < 1e-6);
    }
    json_decref(json);
}

static void collectives_want_more_than_one_rank(void **state) {
    (void)state;
    expect_code("collective device=cpu", ERROR_USAGE, "mpirun");
}

/* -- Generation ---------------------------------------------------------------------------------------------------- */

static void many_sequences_are_measured(void **state) {
    (void)state;
    write_input("decode.yaml", small_llama);
    SCOPED_FREE char *smelt = process_smelt();
    SCOPED_FREE char *command = memory_format("%s bench batch %s/decode.yaml device=cpu threads=1 prompt=20 tokens=5 sequences=1,3 "
                                              "json=%s/batch.json model.context=128",
        smelt, folder, folder);
    assert_int_equal(system(command), 0);
    json_t *json = read_json("batch.json"), *all = json_object_get(json, "rows");
    assert_int_equal(json_array_size(all), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *row = json_array_get(all, i);
        assert_true(number_of(row, "sequences") == (i ? 3 : 1) && number_of(row, "prompt_tokens_s") > 0);
        assert_true(number_of(row, "step_tokens_s") > number_of(row, "tokens_s") && number_of(row, "tokens_s") > 0);
    }
    json_decref(json);
    SCOPED_FREE char *few_rows =
        memory_format("%s bench batch %s/decode.yaml device=cpu threads=1 prompt=20 tokens=5 sequences=3 limit=100 "
                      "cache=120 json=%s/batch.json model.context=128",
            smelt, folder, folder);
    assert_int_equal(system(few_rows), 0);
    json = read_json("batch.json");
    const json_t *row = json_array_get(json_object_get(json, "rows"), 0);
    assert_true(number_of(row, "at_once") > 1 && number_of(row, "at_once") < 3 && number_of(row, "tokens_s") > 0);
    json_decref(json);
    expect_code("batch %s/decode.yaml device=cpu prompt=20 tokens=5 sequences=3 model.context=128 adapters=2 lora.rank=3", 0, NULL);
    expect_code("batch %s/decode.yaml device=cpu prompt=20 tokens=5 model.context=128 adapters=2", ERROR_USAGE, "adapters=2 lora.rank");
    expect_code("batch %s/decode.yaml device=cpu prompt=10 limit=1000000", ERROR_USAGE, "prompt=10 limit=1000000 model.context=");
    expect_code("batch %s/decode.yaml device=cpu prompt=1000000", ERROR_USAGE, "prompt=1000000 tokens=128 model.context=");
}

static void generation_is_measured_alone_and_by_ranks(void **state) {
    (void)state;
    static const char words[] =
        "%s decode %s/decode.yaml device=cpu threads=1 prompt=100 tokens=5 json=%s/decode.json model.context=128 %s";
    write_input("decode.yaml", small_llama);
    for (int ranks = 1; ranks <= 2; ranks++) {
        char *smelt = process_smelt(),
             *launch = ranks > 1 ? memory_format("%s launch -n 2 self_test=false -- bench", smelt) : memory_format("%s bench", smelt);
        char *command = memory_format(words, launch, folder, folder, ranks > 1 ? "layout.cp=2" : "");
        assert_int_equal(system(command), 0);
        json_t *json = read_json("decode.json"), *row = json_array_get(json_object_get(json, "rows"), 0);
        assert_true(number_of(row, "ranks") == ranks && number_of(row, "prompt") == 100);
        assert_true(number_of(row, "token_ms") >= number_of(row, "best_ms") && number_of(row, "best_ms") > 0);
        assert_true((number_of(row, "sent_bytes") > 0) == (ranks > 1));
        json_decref(json);
        free(command), free(launch), free(smelt);
    }
    expect_code("decode %s/decode.yaml device=cpu prompt=1000000", ERROR_USAGE, "prompt=1000000 tokens=64 exceed model.context=");
    expect_code("decode %s/decode.yaml device=cpu prompt=4 tokens=5 layout.cp=2", ERROR_USAGE,
        "layout.cp=2 x layout.tp=1 does not match 1 started rank: set layout.cp=1");
}

/* -- Training ------------------------------------------------------------------------------------------------------ */

static void training_finds_a_microbatch_that_divides_the_batch(void **state) {
    (void)state;
    write_input("train.yaml", small_llama);
    expect_code("train %s/train.yaml measured_steps=1 accumulation=0 json=%s/train.json device=cpu", 0, "microbatch 4:");
    json_t *json = read_json("train.json");
    const json_t *row = json_array_get(json_object_get(json, "rows"), 0);
    double microbatch = number_of(row, "microbatch"), tokens = microbatch * number_of(row, "accumulation") * 16;
    assert_true(tokens == 64);
    assert_true(fabs(number_of(row, "tokens_s") * number_of(row, "step_ms") / 1e3 / tokens - 1) < 1e-6);
    assert_true(number_of(row, "tflops") > 0 && number_of(row, "memory_bytes") > 0 && number_of(row, "best_percent") > 0);
    assert_true(json_is_null(json_object_get(row, "peak_percent"))); /* of a CPU it is not known */
    json_decref(json);
}

/* Two ranks have as much work together as the microbatches of one process, whatever they divide. */
static void ranks_train_together_in_any_layout(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        int groups;
    } layouts[] = {{"layout.zero=3", 2}, {"layout.zero=3 optimizer.in_backward=true optimizer.clip=0 accumulation=1", 2},
        {"layout.zero=3 lora.rank=2 lora.base=nf4", 2}, {"layout.zero=3 lora.rank=2 preference.loss=dpo data.packing=best_fit", 2},
        {"layout.tp=2", 1}, {"layout.cp=2", 1}, {"layout.pp=2 model.layers=2", 1}};
    write_input("ranks.yaml", small_llama);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        SCOPED_FREE char *smelt = process_smelt();
        SCOPED_FREE char *command = memory_format("%s launch -n 2 self_test=false -- bench train %s/ranks.yaml device=cpu threads=1 "
                                                  "microbatch=2 accumulation=2 measured_steps=1 json=%s/ranks.json %s > /dev/null 2>&1",
            smelt, folder, folder, layouts[i].settings);
        if (system(command) != 0) fail_msg("%s", command);
        json_t *json = read_json("ranks.json");
        const json_t *row = json_array_get(json_object_get(json, "rows"), 0);
        double accumulation = strstr(layouts[i].settings, "accumulation=1") ? 1 : 2;
        double tokens = 2 * accumulation * 16 * layouts[i].groups / 2;
        assert_true(number_of(row, "ranks") == 2 && number_of(row, "microbatch") == 2 && number_of(row, "accumulation") == accumulation);
        if (!(fabs(number_of(row, "tokens_s") * number_of(row, "step_ms") / 1e3 / tokens - 1) < 1e-6)) fail_msg("%s", layouts[i].settings);
        assert_true(number_of(row, "tflops") > 0 && number_of(row, "memory_bytes") > 0);
        json_decref(json);
    }
}

static void training_that_does_not_fit_is_refused_before_it_starts(void **state) {
    (void)state;
    write_input("large.yaml", small_llama);
    expect_code("train %s/large.yaml device=cpu model.width=16384 model.ffn=262144", ERROR_MEMORY, "are free");
}

static void a_suite_goes_on_after_a_model_that_fails(void **state) {
    (void)state;
    write_input("one.yaml", small_llama);
    expect_code("suite configs=%s/none.yaml,"
                "/dev/null lengths=16",
        ERROR_INTERNAL, "2 of 2 rows failed");
    expect_code("suite configs=%s/one.yaml lengths=8,16 microbatch=1 accumulation=1 measured_steps=1 perf=%s/perf.csv device=cpu", 0, NULL);
    expect_code("suite configs=%s/none.yaml perf=%s/perf.csv device=cpu", ERROR_INTERNAL, "none.yaml");
    char *perf = read_result("perf.csv");
    assert_int_equal(process_lines(perf, ""), 1 + 3);
    assert_int_equal(process_lines(perf, "model,n_gpus,nnodes,gpus_per_node,training_precision,"), 1);
    assert_int_equal(process_lines(perf, "smelt_train_one,1,1,1,bf16,"), 2);
    assert_non_null(strstr(perf, ",SUCCESS,"));
    assert_non_null(strstr(perf, ",FAILURE,"));
    free(perf);
    expect_code("suite configs=configs/flux-tiny.yaml microbatch=1 accumulation=1 measured_steps=1 perf=%s/images.csv device=cpu", 0, NULL);
    perf = read_result("images.csv");
    assert_int_equal(process_lines(perf, "smelt_train_flux-tiny,1,1,1,fp32,"), 1);
    assert_non_null(strstr(perf, ",images_per_second_per_gpu,,SUCCESS,"));
    free(perf);
    expect_code(
        "suite configs=%s/one.yaml microbatch=1 accumulation=1 measured_steps=1 perf=%s/perf.csv fp8.recipe=row device=cpu", 0, NULL);
    perf = read_result("perf.csv");
    assert_int_equal(process_lines(perf, "smelt_train_one,1,1,1,fp8,"), 1);
    assert_non_null(strstr(perf, " accumulation=1 fp8.recipe=row,"));
    free(perf);
}

static void a_perf_file_with_other_columns_is_left_alone(void **state) {
    (void)state;
    write_input("two.yaml", small_llama);
    write_input("other.csv", "model,performance\n");
    expect_code("suite configs=%s/two.yaml microbatch=1 accumulation=1 measured_steps=1 perf=%s/other.csv device=cpu", ERROR_USAGE,
        "other.csv 29 columns");
    char *text = read_result("other.csv");
    assert_string_equal(text, "model,performance\n");
    free(text);
}

/* -- Arguments ----------------------------------------------------------------------------------------------------- */

static void wrong_arguments_are_named(void **state) {
    (void)state;
    write_input("config.yaml", small_llama);
    expect_code("nonsense", ERROR_USAGE, "nonsense");
    expect_code("gemm m=4k5", ERROR_USAGE, "m=4k5");
    expect_code("gemm color=red", ERROR_USAGE, "color");
    expect_code("gemm model.width=64", ERROR_USAGE, "model.width");
    expect_code("gemm %s/config.yaml model.wdth=64", ERROR_USAGE, "model.wdth");
    expect_code("train", ERROR_USAGE, "CONFIG.yaml");
    expect_code("memory extra", ERROR_USAGE, "extra");
}

static void outputs_that_cannot_be_written_are_refused_before_measuring(void **state) {
    (void)state;
    char *made = path_of("made.json");
    expect_code("gemm m=16 cache=hot csv=%s/before.csv" QUICK, ERROR_NONE, "");
    char *first = read_result("before.csv");
    ProcessResult result = bench("gemm m=16 cache=hot csv=%s/before.csv json=%s/made.json plot=%s/no/such/file" QUICK);
    assert_int_equal(result.code, ERROR_USAGE);
    assert_mentions(result.errors, "plot=");
    assert_string_equal(result.output, "");
    char *before = read_result("before.csv");
    assert_string_equal(before, first);
    assert_true(access(made, F_OK) != 0);
    process_free(&result);
    free(first);
    free(before);
    free(made);
    expect_code("gemm m=16 cache=hot json=/" QUICK, ERROR_USAGE, "json=/ directory");
}

static void every_benchmark_explains_itself(void **state) {
    (void)state;
    static const char *const names[] = {
        "gemm", "memory", "attention", "optimizer", "storage", "loader", "train", "suite", "collective", "decode", "batch"};
    ProcessResult all = bench("--help");
    assert_int_equal(all.code, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *arguments = memory_format("%s --help", names[i]);
        ProcessResult one = bench(arguments);
        assert_int_equal(one.code, 0);
        assert_non_null(strstr(all.output, names[i]));
        assert_non_null(strstr(one.output, "Usage: smelt bench"));
        assert_non_null(strstr(one.output, "json"));
        process_free(&one);
        free(arguments);
    }
    process_free(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_have_numbers_and_ranges),
        cmocka_unit_test(lists_refuse_what_is_no_number_in_range),
        cmocka_unit_test(a_call_takes_as_long_as_it_sleeps),
        cmocka_unit_test(sets_of_an_arena_rotate_without_overlap),
        cmocka_unit_test(an_arena_is_filled_with_normal_numbers_to_its_end),
        cmocka_unit_test(gemm_measures_every_shape_and_checks_it),
        cmocka_unit_test(one_provider_can_be_asked_for),
        cmocka_unit_test(what_only_gpus_have_is_refused_on_a_cpu),
        cmocka_unit_test(results_name_the_machine_and_the_settings),
        cmocka_unit_test(a_plot_is_a_picture_with_a_curve_for_each_series),
        cmocka_unit_test(gemms_of_a_model_are_those_of_its_step),
        cmocka_unit_test(memory_counts_bytes_as_stream_does),
        cmocka_unit_test(attention_counts_what_causality_leaves),
        cmocka_unit_test(optimizers_move_the_bytes_of_their_state),
        cmocka_unit_test(storage_leaves_nothing_behind),
        cmocka_unit_test(storage_tells_the_step_that_it_would_hold_up),
        cmocka_unit_test(storage_refuses_a_folder_that_is_not_there),
        cmocka_unit_test(the_loader_reads_each_sample_cold_and_warm),
        cmocka_unit_test(the_loader_refuses_what_is_no_shard),
        cmocka_unit_test(collectives_are_right_and_counted_as_nccl_tests_does),
        cmocka_unit_test(collectives_want_more_than_one_rank),
        cmocka_unit_test(many_sequences_are_measured),
        cmocka_unit_test(generation_is_measured_alone_and_by_ranks),
        cmocka_unit_test(training_finds_a_microbatch_that_divides_the_batch),
        cmocka_unit_test(ranks_train_together_in_any_layout),
        cmocka_unit_test(training_that_does_not_fit_is_refused_before_it_starts),
        cmocka_unit_test(a_suite_goes_on_after_a_model_that_fails),
        cmocka_unit_test(a_perf_file_with_other_columns_is_left_alone),
        cmocka_unit_test(wrong_arguments_are_named),
        cmocka_unit_test(outputs_that_cannot_be_written_are_refused_before_measuring),
        cmocka_unit_test(every_benchmark_explains_itself),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
