/* Tests of `smelt generate MODEL PROMPTS.jsonl`: each prompt gets what it gets alone, in the order of the file, with its own
 * members; and files that are not prompts are refused by their line. */
#include "support/train_run.h"

#include "base/file.h"
#include "base/scope.h"

#define GREEDY "temperature=0 tokens=12 threads=1 "

static void make_run(void) { train_good("run=r steps=6 model.context=300 checkpoint.every=0 eval.every=0"); }

/* Returns what the program writes to stdout. The caller frees. */
static char *printed_by(const char *words) {
    ProcessResult result = smelt(words);
    if (result.code) fail_msg("%s: %d: %s", words, result.code, result.errors);
    char *output = memory_copy_string(result.output);
    process_free(&result);
    return output;
}

/* Parses the lines of a file. */
static json_t *lines_of(const char *path) {
    size_t length;
    char *text = (char *)read_bytes(path, &length), *end = text + length;
    json_t *lines = json_array();
    for (char *at = text; at < end;) {
        char *next = memchr(at, '\n', (size_t)(end - at));
        assert_non_null(next);
        json_t *line = json_loadb(at, (size_t)(next - at), 0, NULL);
        assert_non_null(line);
        json_array_append_new(lines, line);
        at = next + 1;
    }
    free(text);
    return lines;
}

static const char *text_at(const json_t *lines, size_t line, const char *name) {
    const char *text = json_string_value(json_object_get(json_array_get(lines, line), name));
    if (!text) fail_msg("line %zu has no text %s", line, name);
    return text;
}
static json_int_t integer_at(const json_t *lines, size_t line, const char *name) {
    return json_integer_value(json_object_get(json_array_get(lines, line), name));
}

static void prompts_get_what_they_get_alone(void **state) {
    (void)state;
    static const char *const prompts[] = {"a", "the text goes on", "xyz", "0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7"};
    make_run();
    FILE *file = fopen("p.jsonl", "w");
    for (int i = 0; i < 4; i++) {
        json_auto_t *record = json_pack("{ss si}", "prompt", prompts[i], "own", i);
        json_dumpf(record, file, 0);
        fputs(i == 1 ? "\n\n" : "\n", file);
    }
    fputs("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n{\"tokens\": [97]}", file);
    fclose(file);
    smelt_good("generate r p.jsonl out=o.jsonl samples=2 slots=3 ids=true template=chatml " GREEDY);
    json_auto_t *lines = lines_of("o.jsonl");
    assert_int_equal(json_array_size(lines), 12);
    for (size_t i = 0; i < 12; i++) {
        SCOPED_FREE char *alone = NULL;
        const char *prompt = i < 8 ? prompts[i / 2] : i < 10 ? "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n" : "a";
        write_text("prompt", prompt);
        FILE *pipe = popen("cat prompt | { cat; echo; } | $SMELT generate r - " GREEDY "device=cpu 2> errors", "r");
        size_t capacity = 0;
        assert_true(getdelim(&alone, &capacity, '\0', pipe) > 0);
        assert_int_equal(pclose(pipe), 0);
        SCOPED_FREE char *expected = memory_format("%s%s\n", prompt, text_at(lines, i, "completion"));
        assert_string_equal(alone, expected);
        assert_int_equal(integer_at(lines, i, "sample"), i % 2);
        if (i < 8) assert_int_equal(integer_at(lines, i, "own"), i / 2);
        const json_t *line = json_array_get(lines, i), *ids = json_object_get(line, "ids"), *logs = json_object_get(line, "logprobs");
        assert_int_equal(json_array_size(ids), integer_at(lines, i, "tokens_generated"));
        double sum = 0;
        for (size_t k = 0; k < json_array_size(logs); k++) {
            assert_true(json_real_value(json_array_get(logs, k)) <= 0);
            sum += json_real_value(json_array_get(logs, k));
        }
        assert_float_equal(sum, json_real_value(json_object_get(line, "logprob")), 1e-6);
        assert_string_equal(text_at(lines, i, "finish"), json_array_size(ids) == 12 ? "length" : "stop");
    }
    smelt_good("generate r p.jsonl out=top.jsonl slots=3 ids=true template=chatml top_logprobs=3 " GREEDY);
    json_auto_t *tops = lines_of("top.jsonl");
    for (size_t i = 0; i < 6; i++) { /* without penalties, a greedy token is the likeliest one */
        const json_t *line = json_array_get(tops, i), *ids = json_object_get(line, "ids"), *logs = json_object_get(line, "logprobs"),
                     *lists = json_object_get(line, "top_logprobs");
        assert_int_equal(json_array_size(lists), json_array_size(ids));
        for (size_t k = 0; k < json_array_size(ids); k++) {
            const json_t *list = json_array_get(lists, k), *first = json_array_get(list, 0);
            assert_int_equal(json_array_size(list), 3);
            assert_true(json_equal(json_array_get(first, 0), json_array_get(ids, k)) &&
                        json_equal(json_array_get(first, 1), json_array_get(logs, k)));
        }
    }
    SCOPED_FREE char *printed = printed_by("generate r p.jsonl samples=2 slots=1 ids=true template=chatml " GREEDY);
    size_t length;
    SCOPED_FREE char *written = (char *)read_bytes("o.jsonl", &length);
    assert_memory_equal(printed, written, length);
}

static void token_ids_get_what_they_get_alone(void **state) {
    (void)state;
    make_run();
    write_text("p.jsonl", "{\"tokens\": [97, 32, 98]}\n");
    smelt_good("generate r p.jsonl out=o.jsonl text=false " GREEDY);
    json_auto_t *lines = lines_of("o.jsonl");
    const json_t *ids = json_object_get(json_array_get(lines, 0), "ids");
    FILE *pipe = popen("$SMELT generate r '97 32 98' text=false device=cpu " GREEDY "2> errors", "r");
    for (int i = 0; i < 15; i++) {
        int id;
        assert_int_equal(fscanf(pipe, "%d", &id), 1);
        if (i >= 3) assert_int_equal(json_integer_value(json_array_get(ids, (size_t)i - 3)), id);
    }
    assert_int_equal(pclose(pipe), 0);
    assert_int_equal(json_array_size(ids), 12);
}

/* Samples differ from each other, not from run to run, nor with other slots. */
static void samples_are_drawn_by_seed_line_and_number(void **state) {
    (void)state;
    make_run();
    write_text("p.jsonl", "{\"prompt\": \"the\"}\n{\"prompt\": \"the\"}\n");
    smelt_good("generate r p.jsonl out=a.jsonl samples=3 slots=6 tokens=20 seed=5 threads=1");
    smelt_good("generate r p.jsonl out=b.jsonl samples=2 slots=1 tokens=20 seed=5 threads=1");
    smelt_good("generate r p.jsonl out=c.jsonl samples=2 slots=1 tokens=20 seed=6 threads=1");
    json_auto_t *a = lines_of("a.jsonl"), *b = lines_of("b.jsonl"), *c = lines_of("c.jsonl");
    assert_int_equal(json_array_size(a), 6);
    for (size_t line = 0; line < 2; line++)
        for (size_t sample = 0; sample < 2; sample++)
            assert_string_equal(text_at(a, 3 * line + sample, "completion"), text_at(b, 2 * line + sample, "completion"));
    for (size_t i = 0; i < 6; i++)
        for (size_t j = 0; j < i; j++) assert_string_not_equal(text_at(a, i, "completion"), text_at(a, j, "completion"));
    assert_string_not_equal(text_at(b, 0, "completion"), text_at(c, 0, "completion"));
}

static void what_is_no_prompt_is_refused_by_its_line(void **state) {
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"{\"prompt\": 3}", "p.jsonl 2 prompt tokens messages"},
        {"{\"prompt\": \"a\", \"tokens\": [1]}", "p.jsonl 2"},
        {"{\"prompt\": \"\"}", "p.jsonl 2"},
        {"{\"prompt\": \"a\\u0000b\"}", "p.jsonl 2"},
        {"{\"tokens\": [1, -2]}", "p.jsonl 2 1"},
        {"{\"tokens\": []}", "p.jsonl 2"},
        {"{\"prompt\": \"a\", \"finish\": 1}", "p.jsonl 2 finish"},
        {"{\"prompt\": \"a\"", "p.jsonl 2"},
        {"[1]", "p.jsonl 2"},
    };
    make_run();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SCOPED_FREE char *text = memory_format("{\"prompt\": \"good\"}\n%s\n", cases[i].line);
        write_text("p.jsonl", text);
        ProcessResult result = smelt("generate r p.jsonl out=o.jsonl");
        if (result.code != ERROR_DATA && result.code != ERROR_USAGE) fail_msg("%s: %d", cases[i].line, result.code);
        assert_mentions(result.errors, cases[i].message);
        process_free(&result);
        assert_false(file_exists("o.jsonl"));
    }
    write_text("p.jsonl", "{\"tokens\": [999]}\n");
    smelt_says(ERROR_USAGE, "999 model.vocabulary", "generate r p.jsonl out=o.jsonl");
    write_text("p.jsonl", "{\"prompt\": \"a prompt\"}\n");
    smelt_says(ERROR_USAGE, "1 p.jsonl 8", "generate r p.jsonl out=o.jsonl context=8");
    smelt_says(ERROR_USAGE, "cache", "generate r p.jsonl cache=false");
    smelt_says(ERROR_USAGE, "samples", "generate r prompt samples=2");
    smelt_says(ERROR_USAGE, "presence_penalty", "generate r prompt presence_penalty=1");
    smelt_says(ERROR_USAGE, "top_logprobs=3 ids=true", "generate r p.jsonl top_logprobs=3");
    smelt_says(ERROR_USAGE, "999 logit bias model.vocabulary", "generate r p.jsonl logit_bias={\"999\":1}");
    smelt_says(ERROR_USAGE, "logit_bias=[1]", "generate r p.jsonl logit_bias=[1]");
    smelt_says(ERROR_USAGE, "logit_bias 1x", "generate r p.jsonl logit_bias={\"1x\":1}");
    smelt_says(ERROR_USAGE, "stop= text=false", "generate r p.jsonl stop=a text=false");
    write_text("o.jsonl", "{\"kept\": 1}\n");
    smelt_says(ERROR_USAGE, "o.jsonl", "generate r p.jsonl out=o.jsonl tokens=2");
    smelt_good("generate r p.jsonl out=o.jsonl tokens=2 overwrite=true");
    smelt_says(ERROR_USAGE, "out=./p.jsonl", "generate r p.jsonl out=./p.jsonl tokens=2 overwrite=true");
    write_text("notes.txt", "notes");
    smelt_says(ERROR_USAGE, "notes.txt", "generate r p.jsonl out=notes.txt tokens=2 overwrite=true");
    write_text("p.jsonl", "\n");
    smelt_says(ERROR_DATA, "p.jsonl", "generate r p.jsonl");
}

#define ADAPTER "init=r data.length=16 batch.sequences=2 batch.tokens=32 steps=8 schedule.warmup=0 eval.sample_tokens=0 eval.every=0 lora.targets=attention "

/* A run, a PEFT folder and the base in one batch: each row gets the output of its merged model alone. */
static void each_prompt_gets_its_adapter(void **state) {
    (void)state;
    static const char *const alone[] = {"r", "one", "two"}, *const names[] = {NULL, "first", "second"};
    make_run();
    train_good("run=one lora.rank=2 lora.alpha=8 lora.base=nf4 optimizer.lr=0.1 seed=3 " ADAPTER);
    train_good("run=two lora.rank=11 lora.alpha=11 optimizer.lr=0.1 seed=4 " ADAPTER);
    smelt_good("convert two folder adapter=true");
    FILE *file = fopen("p.jsonl", "w");
    for (int i = 0; i < 9; i++) {
        json_auto_t *record = json_pack("{ss ss*}", "prompt", i < 3 ? "the text" : i < 6 ? "a" : "0 1 2 3 4", "adapter", names[i % 3]);
        json_dumpf(record, file, 0);
        fputs("\n", file);
    }
    fclose(file);
    write_text("plain.jsonl", "{\"prompt\": \"the text\"}\n{\"prompt\": \"a\"}\n{\"prompt\": \"0 1 2 3 4\"}\n");
    smelt_good("generate r p.jsonl adapters={\"first\":\"one\",\"second\":\"folder\"} out=o.jsonl slots=4 ids=true precision=fp32 " GREEDY);
    json_auto_t *lines = lines_of("o.jsonl");
    assert_int_equal(json_array_size(lines), 9);
    double effect = 0;
    for (int m = 0; m < 3; m++) {
        SCOPED_FREE char *words =
            memory_format("generate %s plain.jsonl out=alone.jsonl overwrite=true ids=true precision=fp32 " GREEDY, alone[m]);
        smelt_good(words);
        json_auto_t *expected = lines_of("alone.jsonl");
        for (size_t i = 0; i < 3; i++) {
            const json_t *own = json_array_get(lines, 3 * i + (size_t)m), *line = json_array_get(expected, i);
            assert_true(json_equal(json_object_get(own, "ids"), json_object_get(line, "ids")));
            double sum = json_real_value(json_object_get(line, "logprob"));
            assert_float_equal(json_real_value(json_object_get(own, "logprob")), sum, 1e-4);
            effect = fmax(effect, fabs(json_real_value(json_object_get(json_array_get(lines, 3 * i), "logprob")) - sum));
        }
    }
    assert_true(effect > 0.1);
}

static void what_is_no_adapter_of_the_model_is_refused(void **state) {
    (void)state;
    make_run();
    train_good("run=one lora.rank=2 " ADAPTER);
    train_good("run=rows lora.rank=2 lora.tokens=3-5 " ADAPTER);
    train_good("run=q steps=1 schedule.warmup=0 model.context=300 eval.every=0 seed=8");
    train_good("run=other lora.rank=2 lora.targets=attention init=q data.length=16 batch.sequences=2 batch.tokens=32 steps=1 "
               "schedule.warmup=0 eval.every=0");
    smelt_good("convert one folder adapter=true");
    train_good("run=wide steps=1 schedule.warmup=0 model.width=64 model.context=300 eval.every=0");
    train_good("run=experts lora.rank=2 init=r data.length=16 batch.sequences=2 batch.tokens=32 steps=1 schedule.warmup=0 eval.every=0");
    static const struct {
        const char *words, *message;
        int code;
    } cases[] = {
        {"r p.jsonl adapters={\"x\":\"experts\"}", "x lora_A experts", ERROR_USAGE},
        {"r p.jsonl adapters={\"x\":\"nothing\"}", "x nothing", ERROR_CHECKPOINT},
        {"r p.jsonl adapters={\"x\":\"r\"}", "x r lora.rank", ERROR_USAGE},
        {"r p.jsonl adapters={\"x\":\"p.jsonl\"}", "x p.jsonl", ERROR_CHECKPOINT},
        {"r p.jsonl adapters={\"x\":3}", "x", ERROR_USAGE},
        {"r p.jsonl adapters={\"\":\"one\"}", "name", ERROR_USAGE},
        {"r p.jsonl adapters={\"x\":\"one\",\"x\":\"folder\"}", "duplicate x", ERROR_USAGE},
        {"r p.jsonl adapters=[]", "adapters=[] 64", ERROR_USAGE},
        {"r p.jsonl adapters={}", "adapters={} 64", ERROR_USAGE},
        {"r p.jsonl adapters=one", "adapters=one", ERROR_USAGE},
        {"r p.jsonl adapters={\"x\":\"folder@r\"}", "x folder@r r", ERROR_USAGE},
        {"r p.jsonl adapters={\"x\":\"rows\"}", "x token_adapter", ERROR_USAGE},
        {"r p.jsonl adapters={\"x\":\"other\"}", "x other init=", ERROR_CHECKPOINT},
        {"wide p.jsonl adapters={\"x\":\"folder\"}", "x folder lora_A", ERROR_CHECKPOINT},
        {"one p.jsonl adapters={\"x\":\"one\"}", "one has adapters", ERROR_USAGE},
        {"r p.jsonl adapters={\"y\":\"one\"}", "p.jsonl 1 x", ERROR_DATA},
        {"r p.jsonl", "p.jsonl 1 x", ERROR_DATA},
        {"r prompt adapters={\"x\":\"one\"}", "adapters", ERROR_USAGE},
    };
    write_text("p.jsonl", "{\"prompt\": \"a\", \"adapter\": \"x\"}\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        smelt_says(cases[i].code, cases[i].message, "generate %s tokens=2 threads=1", cases[i].words);
    write_text("p.jsonl", "{\"prompt\": \"a\", \"adapter\": null}\n");
    smelt_good("generate r p.jsonl tokens=2 threads=1");
    train_good("run=third lora.rank=2 lora.alpha=3 " ADAPTER);
    smelt_says(ERROR_USAGE, "exact=true x 1.5", "generate r p.jsonl adapters={\"x\":\"third\"} exact=true tokens=2 threads=1");
    smelt_says(ERROR_USAGE, "adapters= one name=", "serve r adapters={\"one\":\"one\"} name=one port=0 template=chatml threads=1");
}

/* PEFT saves a tokenizer beside its adapters. The run r has the byte tokenizer. */
static void side_files_of_an_adapter_are_compared_with_those_of_the_base(void **state) {
    (void)state;
    make_run();
    train_good("run=one lora.rank=2 " ADAPTER);
    smelt_good("convert one folder adapter=true");
    smelt_good("convert r plain");
    train_good("run=named lora.rank=2 data.tokenizer=plain " ADAPTER); /* keeps the files of the byte tokenizer */
    write_text("p.jsonl", "{\"prompt\": \"a\", \"adapter\": \"x\"}\n");
    smelt_good("generate r p.jsonl adapters={\"x\":\"named\"} tokens=2 threads=1");
    assert_int_equal(rename("plain/tokenizer.json", "folder/tokenizer.json"), 0);
#define GENERATE "generate r p.jsonl adapters={\"x\":\"folder\"} tokens=2 threads=1"
    smelt_good(GENERATE);
    write_text("folder/chat_template.jinja", "{{ messages[0].content }}");
    smelt_says(ERROR_NONE, "adapter x has another chat template than r, whose template renders messages", GENERATE);
    write_text("folder/tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}");
    smelt_says(ERROR_USAGE, "x folder another tokenizer than r", GENERATE);
    assert_int_equal(unlink("folder/tokenizer.json"), 0);
    smelt_says(ERROR_NONE, "adapter x has another chat template than r, whose template renders messages", GENERATE);
    json_auto_t *fields = json_load_file("folder/adapter_config.json", 0, NULL);
    assert_int_equal(json_object_set_new(fields, "modules_to_save", json_pack("[s]", "lm_head")), 0);
    assert_int_equal(json_dump_file(fields, "folder/adapter_config.json", 0), 0);
    smelt_says(ERROR_CHECKPOINT, "x folder has no tensor lm_head.weight modules_to_save", GENERATE);
#undef GENERATE
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(prompts_get_what_they_get_alone),
        TRAIN_TEST(token_ids_get_what_they_get_alone),
        TRAIN_TEST(samples_are_drawn_by_seed_line_and_number),
        TRAIN_TEST(what_is_no_prompt_is_refused_by_its_line),
        TRAIN_TEST(each_prompt_gets_its_adapter),
        TRAIN_TEST(what_is_no_adapter_of_the_model_is_refused),
        TRAIN_TEST(side_files_of_an_adapter_are_compared_with_those_of_the_base),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
