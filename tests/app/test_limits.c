/* Values and limits that end other programs with a signal or unnoticed: NaN in weights, a limit on the size of files,
 * and a mapped file that is cut while it is read. Each is one line that says what happened, and a documented exit code. */
#include "support/mentions.h"
#include "support/ranks_run.h"
#include "support/sanitized.h"

/* Runs a command of the shell, $SMELT being the program, and demands its exit code and a part of its errors. */
static void expect(const char *command, int code, const char *told) {
    char *arguments[] = {"/bin/sh", "-c", (char *)command, NULL};
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    expect_code(&result, code, command);
    if (!mentions(result.errors, told)) fail_msg("%s: no '%s' in: %s", command, told, result.errors);
    process_free(&result);
}

/* The model folder `sick`, whose tensors in the second half of the file are NaN. */
static void make_sick_model(void) {
    size_t size;
    expect("$SMELT train " TINY " run=r stop_at=1 && $SMELT convert r sick dtype=fp32", 0, "");
    unsigned char *bytes = read_bytes("sick/model.safetensors", &size);
    memset(bytes + size / 2, 0xff, size - size / 2);
    write_bytes("sick/model.safetensors", bytes, size);
    free(bytes);
}

static void a_loss_of_nan_is_an_error_of_eval(void **state) {
    (void)state;
    make_sick_model();
    expect("$SMELT eval sick text device=cpu", ERROR_NUMERICS, "the loss of sick is ");
    expect("$SMELT eval sick text device=cpu json=true", ERROR_NUMERICS, "the loss of sick is ");
}

static void weights_of_nan_are_not_converted(void **state) {
    (void)state;
    make_sick_model();
    expect("$SMELT convert sick out", ERROR_NUMERICS, "infinity");
    expect("$SMELT convert sick out dtype=bf16", ERROR_NUMERICS, "error: tensor ");
    assert_true(access("out", F_OK) != 0);
}

static void a_limit_on_the_size_of_files_is_named(void **state) {
    (void)state;
    expect("ulimit -f 600; $SMELT train " TINY " run=r", ERROR_CHECKPOINT, "large raise limit");
    train_good("run=r");
}

static void a_shard_that_is_cut_while_it_is_read_is_named(void **state) {
    (void)state;
    expect("$SMELT data pack text s", 0, "");
    Process process = train_start("run=r data.train=s steps=1000000000");
    process_await_steps(&process, 4);
    assert_int_equal(truncate("s.bin", 0), 0);
    ProcessResult result = process_finish(&process);
    expect_code(&result, ERROR_DATA, "a shard that was cut");
    assert_mentions(result.errors, "data.train=s s.bin");
    process_free(&result);
}

static ProcessResult train_within(int megabytes) {
    char *command = memory_format("rm -rf r; ulimit -v %d; exec $SMELT train " TINY " run=r stop_at=2", megabytes << 10);
    char *arguments[] = {"/bin/sh", "-c", command, NULL};
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    free(command);
    return result;
}

/* From a limit at which the program does not start to one at which it trains: wherever memory runs out, be it for
 * threads, arenas or the scratch of a GEMM, the program says so and ends by itself. */
static void memory_that_is_refused_is_an_error_wherever_it_is_needed(void **state) {
    (void)state;
    if (SANITIZED) skip(); /* a sanitizer takes terabytes of addresses */
    bool starts = false, trains = false;
    int refused = 0;
    for (int megabytes = 16; !trains; megabytes += megabytes / 12) {
        if (megabytes > 1 << 18) fail_msg("it does not train");
        ProcessResult result = train_within(megabytes);
        starts = starts || strstr(result.errors, "error: ");
        if (starts && result.signal) fail_msg("%d MiB: signal %d: %s", megabytes, result.signal, result.errors);
        if (starts && result.code && !strstr(result.errors, "error: ")) fail_msg("%d MiB: no reason: %s", megabytes, result.errors);
        refused += result.code == ERROR_MEMORY;
        trains = result.code == 0;
        process_free(&result);
    }
    assert_true(refused > 0);
}

/* A stack of 195 TiB does not fit into the addresses of a process, so libgomp gets no thread and calls exit. */
static void a_library_that_ends_the_process_is_named(void **state) {
    (void)state;
    expect("OMP_STACKSIZE=200000G $SMELT train " TINY " run=r", ERROR_INTERNAL, "error: a library ended smelt with exit code 1");
}

/* Without the component that is named, MPI_Init_thread ends the rank by _exit. */
static void a_rank_whose_mpi_does_not_start_says_so(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    expect("OMPI_MCA_pml=missing mpirun -n 2 --oversubscribe --allow-run-as-root $SMELT train " TINY " run=r", 1, "MPI");
}

/* Whatever is read may be a named pipe, whose writer would be awaited for ever: the limit of `timeout` is its 124. */
static void a_named_pipe_is_refused_at_once(void **state) {
    (void)state;
    static const struct {
        const char *name, *command;
        int code;
    } pipes[] = {
        {"run/config.yaml", "show run", ERROR_USAGE},
        {"run/config.yaml", "eval run s device=cpu", ERROR_USAGE},
        {"run/config.yaml", "generate run 1 text=false device=cpu", ERROR_USAGE},
        {"run/config.yaml", "convert run out", ERROR_USAGE},
        {"run/config.yaml", "train " TINY " run=run", ERROR_CHECKPOINT},
        {"run/run.json", "show run", ERROR_CHECKPOINT},
        {"run/metrics.jsonl", "train " TINY " run=run", ERROR_CHECKPOINT},
        {"run/metrics.jsonl", "report run", ERROR_INTERNAL},
        {"pipe", "train pipe run=other", ERROR_USAGE},
        {"pipe", "train " TINY " run=other data.train=pipe", ERROR_DATA},
        {"pipe", "train " TINY " run=other data.tokenizer=pipe", ERROR_DATA},
        {"pipe", "eval run pipe device=cpu", ERROR_DATA},
        {"pipe", "size pipe", ERROR_USAGE},
    };
    train_good("run=run stop_at=2");
    expect("$SMELT data pack text s", 0, "");
    for (size_t i = 0; i < sizeof pipes / sizeof *pipes; i++) {
        char *command =
            memory_format("cp -r run kept && rm -f %s && mkfifo %s && timeout 60 $SMELT %s; code=$?; rm -rf run && mv kept run; exit $code",
                pipes[i].name, pipes[i].name, pipes[i].command);
        expect(command, pipes[i].code, "not a regular file");
        free(command);
    }
}

/* Not refused: a run may go on on a smaller machine, and its results do not depend on threads. */
static void far_more_threads_than_processors_are_a_warning(void **state) {
    (void)state;
    long most = 4 * sysconf(_SC_NPROCESSORS_ONLN);
    train_says(ERROR_NONE, "threads=", "run=r stop_at=1 threads=%ld", most + 1);
}

/* Placing its activations took a minute of processor time before the refusal. The limit is on that time, not on the
 * clock, which depends on what else the machine does. */
static void a_model_far_too_large_is_refused_at_once(void **state) {
    (void)state;
    static const char *const commands[] = {"generate huge 1 text=false", "eval huge s"};
    assert_int_equal(mkdir("huge", 0777), 0);
    write_text("huge/config.json",
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"hidden_size\": 4096, \"num_hidden_layers\": 10000, "
        "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"intermediate_size\": 11008, \"vocab_size\": 32000, "
        "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\"}");
    expect("$SMELT data pack text s && rm -r s.tokenizer", 0, "");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        char *command = memory_format("ulimit -t 8; exec $SMELT %s device=cpu", commands[i]);
        expect(command, ERROR_MEMORY, "TiB");
        free(command);
    }
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_loss_of_nan_is_an_error_of_eval),
        TRAIN_TEST(weights_of_nan_are_not_converted),
        TRAIN_TEST(a_limit_on_the_size_of_files_is_named),
        TRAIN_TEST(a_shard_that_is_cut_while_it_is_read_is_named),
        TRAIN_TEST(a_model_far_too_large_is_refused_at_once),
        TRAIN_TEST(memory_that_is_refused_is_an_error_wherever_it_is_needed),
        TRAIN_TEST(a_library_that_ends_the_process_is_named),
        TRAIN_TEST(a_rank_whose_mpi_does_not_start_says_so),
        TRAIN_TEST(a_named_pipe_is_refused_at_once),
        TRAIN_TEST(far_more_threads_than_processors_are_a_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
