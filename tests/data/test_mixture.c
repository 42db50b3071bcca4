/* Tests of the file of a mixture: what it says, and what is refused with which words. */
#include "support/files.h"

#include "base/scope.h"
#include "data/mixture.h"
#include "support/mentions.h"

static Mixture read_mixture(const char *text) {
    Mixture mixture;
    Error error = {0};
    write_bytes("m.yaml", text, strlen(text));
    if (!mixture_read(&mixture, "m.yaml", &error)) fail_msg("%s", error.message);
    return mixture;
}

static void assert_refused(const char *text, const char *part) {
    Mixture mixture;
    Error error = {0};
    write_bytes("m.yaml", text, strlen(text));
    assert_false(mixture_read(&mixture, "m.yaml", &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, part);
}

static void a_file_gives_sources_and_phases(void **state) {
    Mixture mixture = read_mixture("# weights are shares of tokens\n"
                                   "sources:\n"
                                   "  - {name: web, path: corpora/web}\n"
                                   "  - name: long-cot_2\n"
                                   "    path: s3://bucket/cot\n"
                                   "    epochs: 2.5\n"
                                   "phases:\n"
                                   "  - name: pretrain\n"
                                   "    tokens: 8T\n"
                                   "    length: 4Ki\n"
                                   "    weights: {web: 93.5, long-cot_2: 6.5}\n"
                                   "  - rope_theta: 1M\n"
                                   "    batch: {tokens: 16Mi, ramp_tokens: 4Mi, ramp_steps: 100}\n"
                                   "    weights:\n"
                                   "      long-cot_2: 1\n");
    SCOPED_FREE char *web = memory_format("%s/corpora/web", (char *)*state);
    assert_int_equal(mixture.source_count, 2);
    assert_string_equal(mixture.sources[0].name, "web");
    assert_string_equal(mixture.sources[0].path, web);
    assert_true(mixture.sources[0].epochs == 1);
    assert_string_equal(mixture.sources[1].path, "s3://bucket/cot");
    assert_true(mixture.sources[1].epochs == 2.5);
    assert_int_equal(mixture.phase_count, 2);
    const MixturePhase *first = &mixture.phases[0], *last = &mixture.phases[1];
    assert_string_equal(first->name, "pretrain");
    assert_int_equal(first->tokens, 8000000000000);
    assert_int_equal(first->length, 4096);
    assert_true(first->rope_theta == 0 && first->batch_tokens == 0 && first->ramp_tokens == 0);
    assert_true(first->weights[0] == 93.5 && first->weights[1] == 6.5);
    assert_string_equal(last->name, "2");
    assert_true(last->tokens == 0 && last->length == 0 && last->rope_theta == 1e6);
    assert_true(last->batch_tokens == 16 << 20 && last->ramp_tokens == 4 << 20 && last->ramp_steps == 100);
    assert_true(last->weights[0] == 0 && last->weights[1] == 1);
    mixture_free(&mixture);
}

/* A relative path is taken from the folder of the file, which has one path by whatever name. */
static void paths_are_relative_to_the_folder_of_the_file(void **state) {
    static const char text[] = "sources:\n  - {name: a, path: web}\n  - {name: b, path: ./web/}\n  - {name: c, path: .././up}\n"
                               "  - {name: d, path: /d}\n  - {name: e, path: s3://b/e}\nphases: [{weights: {a: 1}}]\n";
    static const char *const paths[] = {"%s/kept/web", "%s/kept/web", "%s/up", "/d", "s3://b/e"};
    static const char *const files[] = {"kept/m.yaml", "./kept/../kept/m.yaml", "link/m.yaml"};
    mkdir("kept", 0777);
    assert_int_equal(symlink("kept", "link"), 0);
    write_bytes("kept/m.yaml", text, strlen(text));
    for (int i = 0; i < 3; i++) {
        Mixture mixture;
        Error error = {0};
        if (!mixture_read(&mixture, files[i], &error)) fail_msg("%s", error.message);
        for (int j = 0; j < 5; j++) {
            SCOPED_FREE char *path = j < 3 ? memory_format(paths[j], (char *)*state) : memory_copy_string(paths[j]);
            assert_string_equal(mixture.sources[j].path, path);
        }
        mixture_free(&mixture);
    }
}

static void phases_may_stand_before_sources(void **state) {
    (void)state;
    Mixture mixture = read_mixture("phases: [{weights: {a: 1}}]\nsources: [{name: a, path: /a}]\n");
    assert_int_equal(mixture.phase_count, 1);
    assert_true(mixture.phases[0].weights[0] == 1);
    mixture_free(&mixture);
}

#define SOURCES "sources: [{name: web, path: /web}, {name: code, path: /code}]\n"

static void what_is_wrong_is_named_with_its_line(void **state) {
    (void)state;
    assert_refused("", "m.yaml");
    assert_refused("sources: []\n", "m.yaml");
    assert_refused(SOURCES, "m.yaml 'phases: [{weights: {web: 1}}]'");
    assert_refused("stages: []\n", "'stages' m.yaml:1");
    assert_refused(SOURCES "phases:\n  weights: {web: 1}\n", "m.yaml:2");
    assert_refused(SOURCES "phases: [web]\n", "m.yaml:2");
    assert_refused(SOURCES "phases: []\nphases: []\n", "'phases' m.yaml:3 2");
    assert_refused(SOURCES "phases:\n - tokens: 8T\n   wieghts: {web: 1}\n", "'wieghts.web' m.yaml:4 'weights.web'?");
    assert_refused(SOURCES "phases:\n - weights: {wbe: 1}\n", "'weights.wbe' m.yaml:3 'weights.web'?");
    assert_refused(SOURCES "phases: [{weights: {web: -1}}]\n", "weights.web at m.yaml:2 is '-1'");
    assert_refused(SOURCES "phases: [{weights: {web: nan}}]\n", "weights.web at m.yaml:2 is 'nan'");
    assert_refused(SOURCES "phases: [{weights: [1, 2]}]\n", "m.yaml:2 'weights'");
    assert_refused(SOURCES "phases: &a [{weights: {web: 1}}]\n", "m.yaml:2");
    assert_refused(SOURCES "phases: [{length: 0.5, weights: {web: 1}}]\n", "length at m.yaml:2 is '0.5'");
    assert_refused("sources: [{name: web, path: /web, epochs: 0}]\n", "epochs at m.yaml:1 is '0'");
}

static void senseless_mixtures_are_refused(void **state) {
    (void)state;
    assert_refused("sources: [{path: /web}]\n", "source 1 1 64 letters");
    assert_refused("sources: [{name: a.b, path: /web}]\n", "source 1 1 64 letters");
    assert_refused(SOURCES "phases: [{name: \"a\\nb\", weights: {web: 1}}]\n", "phase 1 1 64 letters");
    assert_refused("sources: [{name: web}]\n", "source web has no path");
    assert_refused("sources: [{name: a, path: /a}, {name: a, path: /b}]\n", "sources 1 2");
    assert_refused(SOURCES "phases: [{tokens: 1M}]\n", "phase 1 weights");
    assert_refused(SOURCES "phases: [{weights: {web: 1}}, {weights: {web: 1}}]\n", "phase 1 tokens");
    assert_refused(SOURCES "phases: [{tokens: 10, length: 16, weights: {web: 1}}]\n", "tokens 10 sequence 16");
    assert_refused(SOURCES "phases: [{weights: {web: 1}, batch: {ramp_steps: 5}}]\n", "batch.ramp_tokens batch.ramp_steps");
    assert_refused(SOURCES "phases: [{weights: {web: 1, code: 0.00001}}]\n", "weights.code=1e-05 1 1e-05 65536");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_file_gives_sources_and_phases),
        IN_FOLDER(paths_are_relative_to_the_folder_of_the_file),
        IN_FOLDER(phases_may_stand_before_sources),
        IN_FOLDER(what_is_wrong_is_named_with_its_line),
        IN_FOLDER(senseless_mixtures_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
