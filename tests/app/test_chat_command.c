/* Tests of `smelt chat`: answers through a pipe are those of `smelt generate` after the text that the template makes, over
 * several turns; and on a terminal Ctrl-C ends an answer and not the program. */
#include <math.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>

#include "support/train_run.h"

#include "base/file.h"
#include "base/scope.h"

#define QUIET "temperature=0 tokens=12 threads=1 "
#define ASKED(text) "<|im_start|>user\n" text "<|im_end|>\n<|im_start|>assistant\n"

static char *output_of(const char *program, const char *input, const char *words) {
    write_text("input", input);
    char *command = memory_format("%s %s device=cpu < input 2> errors", program, words), *output = NULL;
    FILE *pipe = popen(command, "r");
    size_t capacity = 0;
    ssize_t size = getdelim(&output, &capacity, '\0', pipe);
    assert_true(size >= 0);
    int status = pclose(pipe);
    if (status) {
        size_t length;
        fail_msg("%s: %d: %s", command, status, read_bytes("errors", &length));
    }
    free(command);
    return output;
}

/* What `smelt generate` writes behind a prompt, of which it leaves out the line end at the end. */
static char *continued(const char *prompt) {
    char *output = output_of(getenv("SMELT"), prompt, "generate r - " QUIET), *rest = memory_copy_string(output + strlen(prompt) - 1);
    free(output);
    return rest;
}

static void answers_through_a_pipe_follow_the_template(void **state) {
    (void)state;
    train_good("run=r steps=6 model.context=2000 checkpoint.every=0 eval.every=0");
    char *answers = output_of(getenv("SMELT"), "hi\nand then\n", "chat r template=chatml " QUIET);
    char *first = continued(ASKED("hi") "\n");
    assert_memory_equal(answers, first, strlen(first));
    char *history = memory_format(ASKED("hi") "%.*s<|im_end|>\n" ASKED("and then") "\n", (int)strlen(first) - 1, first);
    char *second = continued(history);
    assert_string_equal(answers + strlen(first), second);
    char *again = output_of(getenv("SMELT"), "hi\nand then\n", "chat r template=chatml context=300 " QUIET);
    assert_string_equal(answers, again);
    char *anew = output_of(getenv("SMELT"), "hi\n/new\nhi\n", "chat r template=chatml " QUIET);
    size_t answer = strlen(first);
    assert_int_equal(strlen(anew), 2 * answer);
    assert_memory_equal(anew, first, answer);
    assert_memory_equal(anew + answer, first, answer);
    free(answers), free(first), free(history), free(second), free(again), free(anew);
}

static void a_model_without_a_template_is_refused(void **state) {
    (void)state;
    train_good("run=r steps=1 schedule.warmup=0 checkpoint.every=0 eval.every=0");
    smelt_says(ERROR_USAGE, "template", "chat r");
}

static char *kept_template(const char *folder) {
    Error error = {0};
    SCOPED_FREE char *path = memory_format("%s/chat_template.jinja", folder);
    char *template = file_read(path, 1 << 20, NULL, &error);
    if (!template) fail_msg("%s", error.message);
    return template;
}

#define SEEN "nothing, nothing, and nothing once more, as you see"

/* Makes the folder tok, whose token 270 is <|im_end|>. Returns the first special token. */
static json_int_t make_tokenizer(void) {
    smelt_good("data train-tokenizer text tok/tokenizer.json vocabulary=270");
    json_auto_t *tokenizer = json_load_file("tok/tokenizer.json", 0, NULL);
    json_t *added = json_object_get(tokenizer, "added_tokens"), *end = json_deep_copy(json_array_get(added, 0));
    json_int_t first = json_integer_value(json_object_get(end, "id"));
    json_object_set_new(end, "id", json_integer(270));
    json_object_set_new(end, "content", json_string("<|im_end|>"));
    json_array_append_new(added, end);
    assert_int_equal(json_dump_file(tokenizer, "tok/tokenizer.json", 0), 0);
    return first;
}

/* Trained in one template and asked in another, a model answers nonsense. */
static void the_template_of_the_data_is_that_of_the_run_and_of_its_folder(void **state) {
    (void)state;
    static const char other[] =
        "{% for m in messages %}{{ m.role[0] + '=' + m.content + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}a={% endif %}";
    json_int_t first = make_tokenizer();
    write_text("tok/chat_template.jinja", "{{ 'the tokenizer has its own' }}");
    write_text("other.jinja", other);
    write_text("chats.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hello there, what is it that you know of the sea and of the land?\"}, "
        "{\"role\": \"assistant\", \"content\": \"" SEEN "\"}]}\n");
    smelt_good("data pack chats.jsonl chats format=chat tokenizer=tok template=other.jinja");
    SCOPED_FREE char *packed = kept_template("chats.tokenizer");
    assert_string_equal(packed, other);
    train_says(ERROR_NONE, "data.train=chats",
        "run=r steps=1 schedule.warmup=0 checkpoint.every=0 eval.every=0 "
        "data.train=chats data.valid= data.tokenizer=tok data.length=16 model.vocabulary=320");
    train_good("run=v steps=1 schedule.warmup=0 checkpoint.every=0 data.train=chats data.valid=chats data.tokenizer=tok data.length=103 "
               "batch.sequences=1 batch.tokens=103 eval.sequences=1 model.vocabulary=320");
    double nats = recorded("v", "evaluation", -1, "loss") * recorded("v", "evaluation", -1, "tokens");
    double bytes = nats / log(2) / recorded("v", "evaluation", -1, "bits_per_byte");
    assert_float_equal(bytes, sizeof SEEN, 1e-6); /* and a line end; none of <|im_end|> */
    smelt_says(ERROR_NONE, "smelt chat r does so", "generate r hi tokens=1");
    SCOPED_FREE char *trained = kept_template("r/tokenizer");
    assert_string_equal(trained, other);
    train_good(
        "run=direct steps=1 schedule.warmup=0 checkpoint.every=0 eval.every=0 data.train=chats.jsonl data.valid= data.valid_fraction=0 "
        "data.template=other.jinja data.tokenizer=tok data.length=16 model.vocabulary=320");
    SCOPED_FREE char *direct = kept_template("direct/tokenizer");
    assert_string_equal(direct, other);
    smelt_good("convert r model");
    SCOPED_FREE char *written = kept_template("model");
    assert_string_equal(written, other);
    json_auto_t *generation = json_load_file("model/generation_config.json", 0, NULL); /* an answer ends where the template ends it */
    const json_t *ends = json_object_get(generation, "eos_token_id");
    assert_int_equal(json_array_size(ends), 2);
    assert_int_equal(json_integer_value(json_array_get(ends, 0)), first);
    assert_int_equal(json_integer_value(json_array_get(ends, 1)), 270);
    assert_int_equal(json_integer_value(json_object_get(generation, "pad_token_id")), first);
}

/* Generates a text whose first token is 270, and demands what ends it. */
static void expect_end(const char *words, const char *finish) {
    write_text("asked.jsonl", "{\"prompt\": \"hi\"}\n");
    write_text("named.jsonl", "{\"prompt\": \"hi\", \"adapter\": \"x\"}\n");
    SCOPED_FREE char *command = memory_format("generate %s out=ended.jsonl tokens=3 logit_bias={\"270\":100} device=cpu", words);
    remove("ended.jsonl");
    smelt_good(command);
    json_auto_t *result = json_load_file("ended.jsonl", 0, NULL);
    const char *found = json_string_value(json_object_get(result, "finish"));
    if (!found || strcmp(found, finish) != 0) fail_msg("%s ends with %s, not %s", words, found ? found : "nothing", finish);
}

#define ADAPT \
    "init=model lora.rank=2 data.length=16 batch.sequences=2 batch.tokens=32 steps=1 schedule.warmup=0 eval.sample_tokens=0 " \
    "tensorboard=false device=cpu "

static void adapters_bring_the_template_that_their_base_lacks(void **state) {
    (void)state;
    make_tokenizer();
    write_text("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"what is it?\"}, "
                              "{\"role\": \"assistant\", \"content\": \"" SEEN "\"}]}\n");
    train_good("run=base steps=1 schedule.warmup=0 eval.every=0 data.tokenizer=tok model.vocabulary=320 model.context=200");
    smelt_good("convert base model");
    smelt_good("data pack chats.jsonl ml format=chat tokenizer=model template=chatml");
    smelt_good("train run=l data.train=ml " ADAPT);
    smelt_says(ERROR_NONE, "tokenizer", "convert l adapter adapter=true");
    SCOPED_FREE char *trained = kept_template("l/tokenizer"), *beside = kept_template("adapter");
    assert_string_equal(beside, trained);
    assert_true(file_exists("adapter/tokenizer_config.json")); /* AutoTokenizer.from_pretrained("adapter") reads it */
    free(output_of(getenv("SMELT"), "hi\n", "chat adapter " QUIET));
    smelt_good("convert l adapter adapter=true overwrite=true");
    expect_end("l asked.jsonl", "stop"); /* token 270 ends its answers, wherever the adapters come from */
    expect_end("adapter@model asked.jsonl", "stop");
    smelt_good("train run=n data.train=ml lora.targets=attention " ADAPT);
    smelt_good("convert n narrow adapter=true");
    expect_end("model named.jsonl adapters={\"x\":\"n\"}", "stop");
    expect_end("model named.jsonl adapters={\"x\":\"narrow\"}", "stop");
    expect_end("model asked.jsonl adapters={\"x\":\"n\"}", "length");
    smelt_good("convert adapter merged");
    SCOPED_FREE char *merged = kept_template("merged");
    assert_string_equal(merged, trained);
    json_auto_t *generation = json_load_file("merged/generation_config.json", 0, NULL);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(generation, "eos_token_id"), 0)), 270);
    smelt_good("train run=again data.train=text data.tokenizer=model " ADAPT);
    smelt_good("convert again plain adapter=true");
    assert_false(file_exists("plain/tokenizer.json")); /* the base has the same */
}

/* Reads until the terminal has shown the text; what comes within a minute. */
static void await(int terminal, const char *text, char *seen, size_t capacity) {
    size_t size = 0;
    while (!strstr(seen, text)) {
        struct pollfd ready = {.fd = terminal, .events = POLLIN};
        if (poll(&ready, 1, 60000) <= 0 || size + 1 >= capacity) fail_msg("\"%s\" is not in \"%s\"", text, seen);
        ssize_t part = read(terminal, seen + size, capacity - size - 1);
        if (part <= 0) fail_msg("\"%s\" is not in \"%s\"", text, seen);
        size += (size_t)part;
        for (size_t i = 0; i < size; i++)
            if (!seen[i]) seen[i] = '?';
        seen[size] = '\0';
    }
}

static void interrupting_ends_the_answer_alone(void **state) {
    (void)state;
    enum { MOST = 1 << 20 };
    char *seen = memory_allocate(MOST);
    int terminal, status;
    train_good("run=r steps=1 schedule.warmup=0 model.context=60000 checkpoint.every=0 eval.every=0");
    pid_t child = forkpty(&terminal, NULL, NULL, NULL);
    if (child == 0) {
        execl(getenv("SMELT"), "smelt", "chat", "r", "template=chatml", "temperature=1", "context=60000", "device=cpu", "threads=1",
            (char *)NULL);
        _exit(127);
    }
    await(terminal, "> ", seen, MOST);
    assert_int_equal(write(terminal, "hello\n", 6), 6);
    *seen = '\0';
    await(terminal, "hello\r\n", seen, MOST);
    *seen = '\0';
    usleep(300000);
    assert_int_equal(write(terminal, "\3", 1), 1);
    await(terminal, "\n> ", seen, MOST);
    assert_int_equal(write(terminal, "/new\n", 5), 5);
    *seen = '\0';
    await(terminal, "> ", seen, MOST);
    assert_int_equal(write(terminal, "\4", 1), 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(terminal);
    free(seen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(answers_through_a_pipe_follow_the_template),
        TRAIN_TEST(a_model_without_a_template_is_refused),
        TRAIN_TEST(the_template_of_the_data_is_that_of_the_run_and_of_its_folder),
        TRAIN_TEST(adapters_bring_the_template_that_their_base_lacks),
        TRAIN_TEST(interrupting_ends_the_answer_alone),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
