/* The references of a run on preference pairs: checks whether the files in RUN/data belong to its
 * first weights, and makes them.
 *
 * A file's weights are identified by what init= names, or by the seed. A run without steps compares
 * this with its settings. Checkpoints know the checksum of their reference file, and a run that
 * continues from one compares the checksum (identity.c), so it no longer needs init=. Rank 0
 * decides and writes; all ranks compute. Called when a run starts. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/scope.h"
#include "base/strings.h"
#include "eval/evaluate.h"
#include "run/identity.h"
#include "train/loop_internal.h"

/* Hashes everything that determines the first weights. */
static bool hash_weights(const Config *config, uint64_t *weights, Error *error) {
    static const char *const groups[] = {"model.", "lora.", "seed", "precision"};
    const char *name;
    json_t *value;
    json_auto_t *settings = identity_settings(config, false), *facts = json_object();
    json_object_foreach(settings, name, value) for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) if (starts_with(name, groups[i]))
        json_object_set(facts, name, value);
    const char *const sources[] = {config->init, config->lora.start};
    for (int i = 0; i < 2; i++) {
        json_t *content = !sources[i][0] ? json_string("") : (i ? identity_of_adapters : identity_of_source)(sources[i], error);
        if (!content) return error_context(error, "%s=%s, whose weights are the reference model", i ? "lora.start" : "init", sources[i]);
        json_object_set_new(facts, i ? "start.content" : "init.content", content);
    }
    SCOPED_FREE char *text = json_dumps(facts, JSON_COMPACT | JSON_SORT_KEYS);
    *weights = hash_bytes(text, strlen(text));
    return true;
}

/* Sets *weights to the hash of the run's first weights, equal on all ranks. */
static bool find_weights(const Loop *loop, uint64_t *weights, Error *error) {
    bool found = !loop_leads(loop) || hash_weights(&loop->settings, weights, error);
    return loop_agree(loop, "first weights", found, error) &&
           comm_host_broadcast(loop->comm, "first weights", weights, sizeof *weights, COMM_U8, 0, error);
}

static Reference *reference_of(Loop *loop, bool valid) { return valid ? &loop->corpus.valid_reference : &loop->corpus.reference; }

/* Closes files of other weights; returns whether one is then missing. */
static bool drop_others(Loop *loop, uint64_t weights) {
    bool missing = false;
    for (int valid = 0; valid <= loop->corpus.has_valid; valid++) {
        Reference *reference = reference_of(loop, valid);
        if (reference->weights != weights) reference_close(reference);
        missing = missing || !reference_is_open(reference);
    }
    return missing;
}

static bool trains_on_pairs(const Loop *loop) { return loop->settings.model.preference.loss != PREFERENCE_NONE; }

bool loop_has_reference(Loop *loop, bool *has, Error *error) {
    uint64_t weights = loop->corpus.reference.weights;
    *has = true;
    if (!trains_on_pairs(loop)) return true;
    if (!loop->origin.step && !find_weights(loop, &weights, error)) return false;
    int64_t missing = drop_others(loop, weights);
    if (!comm_host_all_reduce(loop->comm, "reference", &missing, 1, COMM_I64, COMM_MAX, error)) return false;
    *has = !missing;
    if (*has) identity_put_reference(loop->identity, &loop->corpus.reference);
    return true;
}

static bool make_file(Loop *loop, bool valid, uint64_t weights, Error *error) {
    const Corpus *corpus = &loop->corpus;
    const BinPlan *bins = valid ? &corpus->valid_bins : corpus->bins;
    ReferenceKey key = {.length = bins->length};
    SCOPED_FREE char *path = corpus_reference_path(&loop->settings, valid);
    SCOPED_FREE ReferencePair *pairs = evaluate_reference(&loop->session, corpus, valid, loop->host->stop, error);
    bool made = pairs && shard_set_checksum(valid ? &corpus->valid : corpus->train, &key.content, error) &&
                (!loop_leads(loop) || reference_write(path, &key, weights, pairs, bins->part_count, error));
    return loop_agree(loop, "reference", made, error);
}

/* A run with steps computes a missing reference from the weights of init=. They must be the weights
 * of its other reference. */
static bool check_reference_weights(const Loop *loop, uint64_t weights, Error *error) {
    const Reference *train = &loop->corpus.reference;
    return !reference_is_open(train) || train->weights == weights ||
           error_set(error, ERROR_USAGE,
               "the reference of data.valid=%s is missing, and init=%s does not have the initial weights of %s, which it is computed from: "
               "set init to them, or use the earlier validation data",
               loop->settings.data.valid, loop->settings.init, loop->settings.run);
}

bool loop_make_reference(Loop *loop, Error *error) {
    uint64_t weights = 0;
    double start = log_seconds();
    int64_t pairs = 0;
    if (!find_weights(loop, &weights, error) || !check_reference_weights(loop, weights, error)) return false;
    for (int valid = 0; valid <= loop->corpus.has_valid; valid++) {
        if (reference_is_open(reference_of(loop, valid))) continue;
        if (!make_file(loop, valid, weights, error)) return false;
        pairs += valid ? loop->corpus.valid_bins.part_count : loop->corpus.bins->part_count;
    }
    bool opened = corpus_open_references(&loop->corpus, &loop->settings, error);
    if (opened && drop_others(loop, weights))
        opened = error_set(
            error, ERROR_DATA, "the reference just written into %s/data reads back differently: check the disk", loop->settings.run);
    if (!loop_agree(loop, "reference", opened, error)) return false;
    identity_put_reference(loop->identity, &loop->corpus.reference);
    if (loop_leads(loop)) log_info("computed the reference of %lld pairs in %.1f s", (long long)pairs, log_seconds() - start);
    if (!identity_settle_reference(loop->identity, loop->changes))
        log_warn("the reference of %s has changed: its pairs or the weights of init=%s differ, or this machine rounds differently; rewards "
                 "are relative to the new reference from now on",
            loop->settings.run, loop->settings.init);
    return true;
}
