/* Encodings of images in safetensors files: encoders have already encoded pictures as latents and
 * texts as vectors.
 *
 * In shapes, latents are [C, H, W]. A token of a model is the 2 x 2 latents at the same position in
 * all channels, so C = channels / 4, and an image has H / 2 x W / 2 tokens, row after row. A
 * sample's text is [T, text_width] and its pooled text [pooled_width]. */
#pragma once

#include "ckpt/ckpt.h"
#include "config/config.h"

#define ENCODING_LATENTS "latents"                /* [samples, C, H, W], shifted and scaled as the model expects */
#define ENCODING_TEXT "prompt_embeds"             /* [samples, T, text_width] */
#define ENCODING_POOLED "pooled_prompt_embeds"    /* [samples, pooled_width] */
/* The same of the empty text, which captions are replaced by; both or none. */
#define ENCODING_EMPTY_TEXT "empty_prompt_embeds"          /* [1, T, text_width] */
#define ENCODING_EMPTY_POOLED "empty_pooled_prompt_embeds" /* [1, pooled_width] */

/* A file: a bucket of samples of one resolution. Tensors are fp32, bf16 or fp16. */
typedef struct EncodingFile {
    Safetensors file;
    char *path;                                    /* for messages; owned */
    const StoredTensor *latents, *text, *pooled;   /* latents: NULL if the file has none */
    const StoredTensor *empty_text, *empty_pooled; /* NULL: the file has none */
    int64_t samples, height, width;                /* of latents; 0 if there are none */
} EncodingFile;

/* The samples of a file, or of all files of a folder in the order of their names. Files stay
 * mapped. */
typedef struct EncodingSet {
    char *path; /* as given, for messages; owned */
    EncodingFile *files;
    int64_t file_count, samples;
    int64_t *first_sample; /* [file_count + 1]: of each file in the set */
    int64_t most_tokens;   /* of an image; 0 if no file has latents */
    int64_t text_tokens;   /* of every sample */
} EncodingSet;

typedef enum EncodingUse {
    ENCODINGS_TRAIN, /* every file has latents, and texts of model.text_tokens */
    ENCODINGS_PROMPT /* texts suffice, of any length that all files have */
} EncodingUse;
/* Opens a .safetensors file or a folder of them; their shapes must fit the model. ERROR_DATA names
 * the file, the tensor and the expected shape. */
bool encodings_open(EncodingSet *set, const char *path, const ModelConfig *model, EncodingUse use, Error *error);
void encodings_close(EncodingSet *set); /* a zeroed or failed set is fine */
/* Returns the file of a sample; *index receives the sample's index in the file. */
const EncodingFile *encodings_find(const EncodingSet *set, int64_t sample, int64_t *index);
/* Returns whether a sample is free of NaN and infinity; otherwise `text` names the place: "latents
 * of sample 3 of FILE". */
bool encodings_are_finite(const EncodingSet *set, int64_t sample, char *text, size_t size);
/* Refuses a set of which a file lacks the empty text. ERROR_DATA. */
bool encodings_need_empty_text(const EncodingSet *set, Error *error);
/* Asks the system to read a sample, and returns at once. */
void encodings_prefetch(const EncodingSet *set, int64_t sample);
/* Computes a checksum of sizes and sampled bytes, which identifies a set without reading all of it.
 * ERROR_DATA. */
bool encodings_checksum(const EncodingSet *set, uint64_t *checksum, Error *error);
