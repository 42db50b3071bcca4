/* What a run is, so that no other can be taken for it. An identity is a flat JSON object of texts: the run's number,
 * the program's version, every setting that decides results, and the content of what the settings name:
 *
 *     {"run": "5f0c...", "version": "0.9", "seed": "1", ..., "data.train": "bible",
 *      "data.train.content": "66 documents, 4345112 tokens, xxh3 ...", "init.content": "run 77ab... after step 400"}
 *
 * In place of one content of data.train a mixture has data.train.source.NAME.content of each source, its .order, what the
 * order of its pieces depends on beside it, and data.train.phase.N and data.train.phase.N.batch of each phase.
 *
 * Texts are compared byte by byte, contents with checksums by these, and shown in messages. What a path names is compared
 * in its place: data.train and init may move. Every checkpoint keeps the identity of the run that wrote it in its
 * metadata; RUN/run.json keeps that of the last start. A start compares its own identity with the newest checkpoint's,
 * and all ranks compare theirs with rank 0's. */
#pragma once

#include <jansson.h>

#include "comm/comm.h"
#include "config/config.h"
#include "train/phases.h"
#include "train/train.h"

/* The values of all settings as they were given, or only of those that decide results, as a run remembers them. */
json_t *identity_settings(const Config *config, bool all);
/* Those of a saved identity that decide results. What the program that saved it did not know has its default of now. */
json_t *identity_saved_settings(const json_t *saved);
/* Gives `config` the settings of a saved identity that decide results; those that this program does not know stay. A
 * path is left as it is where `now`, a later identity of the run (NULL: none is known), has the same content there.
 * ERROR_USAGE. */
bool identity_restore(const json_t *saved, const json_t *now, Config *config, OptionStrings *strings, Error *error);
/* The content of a folder or file that init= names: for a run its number and the checkpoint's step, else a checksum of
 * its files, of which only samples are read. NULL on failure. */
json_t *identity_of_source(const char *path, Error *error);
/* The content of the base of a run's adapters. Its files are read whole, because a change between samples would go
 * unnoticed. RUN/base.json keeps the checksum of each file, which is valid while the file's size, time and inode stay
 * the same. `keeps`: the caller is a start, which writes that file. NULL on failure. */
json_t *identity_of_base(const char *path, const char *run, bool keeps, Error *error);
/* Compares two contents by the checksums that both have. */
bool identity_same_content(const char *content, const char *other);
/* The content of a folder of PEFT, without that of the base that it names. NULL on failure. */
json_t *identity_of_adapters(const char *name, Error *error);
/* The content of a file or folder of text: names, sizes, and samples of the files; `held_out`: for validation, as in
 * PackOptions. NULL on failure. */
json_t *identity_of_text(const char *path, bool held_out, Error *error);
/* The content of a run's copy of its tokenizer. NULL on failure. */
json_t *identity_of_tokenizer(const char *run, Error *error);
/* The identity of a start: `run` is the run's number, `corpus` has been opened. `started`: there is a checkpoint, so
 * that the weights of init= are read no more, unless adapters train beside them. `whole`: this rank reads the base of
 * adapters whole, as one rank of each node does; the others read samples. NULL on failure. */
json_t *identity_create(
    const Config *config, const Phases *phases, const Corpus *corpus, const char *run, bool started, bool whole, Error *error);
/* Puts the checksum of the reference of data.train into an identity, so that checkpoints go on with no other. */
void identity_put_reference(json_t *identity, const Reference *reference);
/* Whether the reference of `identity`, which was computed after `changes` had been listed without one, is that of the
 * checkpoint: then the difference is taken out of `changes`, and else it names both. */
bool identity_settle_reference(const json_t *identity, json_t *changes);
/* Takes differences between `saved`, the identity of a checkpoint before which the first `begun` phases had begun, and
 * `now` out of `saved`, where they are of phases that had not, of batches, or of sources that nothing was read of; and
 * appends each to `changes`. */
void identity_settle_mixture(json_t *saved, const json_t *now, const Phases *phases, int begun, json_t *changes);

/* Whether each word of resume.accept is one of an identity's names, or the first part of some: "data" of "data.train".
 * ERROR_USAGE. */
bool identity_check_words(const char *accepted, Error *error);
/* Appends a line "NAME: SAVED -> NOW" to the array `changes` for each difference of a setting that may change, or that a
 * word of `accepted` names. Other differences are ERROR_USAGE; `what` says in the message what was saved. */
bool identity_check(const char *what, const json_t *saved, const json_t *now, const char *accepted, json_t *changes, Error *error);
/* Whether `saved`, the identity of a checkpoint of `run`, names the model of `config`, which its config.yaml gives:
 * ERROR_CHECKPOINT. */
bool identity_check_model(const char *run, const json_t *saved, const Config *config, Error *error);
/* Whether a word of a list as in resume.accept is `name`, or what it begins with before a dot. */
bool identity_accepts(const char *accepted, const char *name);
/* Whether the list allows text to be packed anew: other text, or a setting that decides what it becomes. */
bool identity_accepts_packing(const char *accepted);
/* An identity without the settings: run, version and the content of data, which is the same on all ranks, wherever each
 * has it. */
json_t *identity_content(const json_t *identity);
/* Whether all ranks have the same texts in the object `mine`, called `what` in messages. Ranks that differ from rank 0
 * name what differs: ERROR_USAGE. Collective. */
bool identity_agree(Comm *comm, const char *what, const json_t *mine, Error *error);
