/* Reads models that fastText's supervised trained, and scores texts as its predict does (Joulin
 * et al., "Bag of Tricks for Efficient Text Classification", 2017). The mean of the vectors of a
 * text's words, parts of words (Bojanowski et al., "Enriching Word Vectors with Subword
 * Information", 2017) and runs of words goes through one matrix; a softmax, a tree of logistic
 * functions or one logistic function for each label gives the probabilities. The file is fastText's
 * version 12: parameters, the dictionary, the vectors, the matrix. A Fasttext owns the mapped file
 * and its dictionary. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/strings.h"
#include "filter/filter_internal.h"

static const int64_t MOST_COUNT = 1000000000000000; /* of a label, as in fastText */
enum { MAGIC = 793712314, VERSION = 12, SUPERVISED = 3, WORD = 0, LABEL = 1 };
enum { LOSS_TREE = 1, LOSS_SAMPLED = 2, LOSS_SOFTMAX = 3, LOSS_EACH = 4 };
static const char label_prefix[] = "__label__", end_word[] = "</s>";

/* The parameters that a file begins with, in their order. */
typedef struct FasttextParameters {
    int32_t width, window, epochs, least_count, negatives, run_words, loss, model, buckets, least_part, most_part, rate;
    double sampling;
} FasttextParameters;

typedef struct Entry {
    const char *word; /* in the file, with its NUL */
    int64_t count;
} Entry;

/* A node of the tree of labels; a leaf has no children. */
typedef struct TreeNode {
    int64_t count;
    int32_t left, right;
} TreeNode;

struct Fasttext {
    FileMap map;
    FasttextParameters parameters;
    int32_t word_count, label_count;
    Entry *entries; /* words, then labels */
    int32_t *slots; /* of words by their hash, open addressing; -1: empty */
    uint32_t slot_mask;
    const char *vectors, *matrix; /* fp32, not aligned: [words + buckets, width], [labels, width] */
    int64_t rows;
    TreeNode *tree; /* [2 * labels - 1], if the loss is a tree */
};

/* -- Reading ------------------------------------------------------------------------------------------------------------- */

typedef struct Cursor {
    const char *bytes;
    size_t at, size;
} Cursor;

static bool read_bytes(Cursor *cursor, void *to, size_t size) {
    if (cursor->size - cursor->at < size) return false;
    memcpy(to, cursor->bytes + cursor->at, size);
    cursor->at += size;
    return true;
}

static const uint32_t HASH_START = 2166136261u;
/* fastText's hash of a string: FNV-1a, with bytes as signed numbers. */
static uint32_t hash_bytes(uint32_t hash, const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) hash = (hash ^ (uint32_t)(int8_t)text[i]) * 16777619u;
    return hash;
}

static int32_t find_word(const Fasttext *model, const char *word, size_t size) {
    uint32_t slot = hash_bytes(HASH_START, word, size) & model->slot_mask;
    for (int32_t entry; (entry = model->slots[slot]) >= 0; slot = (slot + 1) & model->slot_mask)
        if (!strncmp(model->entries[entry].word, word, size) && !model->entries[entry].word[size]) return entry;
    return -1;
}

static void index_words(Fasttext *model) {
    uint32_t slots = 16;
    while (slots < 2u * (uint32_t)model->word_count) slots *= 2;
    model->slot_mask = slots - 1;
    model->slots = memory_allocate(slots * sizeof *model->slots);
    memset(model->slots, 0xff, slots * sizeof *model->slots);
    for (int32_t i = 0; i < model->word_count; i++) {
        const char *word = model->entries[i].word;
        uint32_t slot = hash_bytes(HASH_START, word, strlen(word)) & model->slot_mask;
        while (model->slots[slot] >= 0) slot = (slot + 1) & model->slot_mask;
        model->slots[slot] = i;
    }
}

/* Reads words and labels. An entry has at least 10 bytes, which bounds their number by the size of the file. */
static bool read_dictionary(Fasttext *model, Cursor *cursor) {
    int32_t size, words, labels;
    int64_t tokens, pruned;
    if (!read_bytes(cursor, &size, 4) || !read_bytes(cursor, &words, 4) || !read_bytes(cursor, &labels, 4) ||
        !read_bytes(cursor, &tokens, 8) || !read_bytes(cursor, &pruned, 8))
        return false;
    if (words < 0 || labels < 1 || (int64_t)words + labels != size || pruned > 0 || (size_t)size > (cursor->size - cursor->at) / 10)
        return false;
    model->word_count = words;
    model->label_count = labels;
    model->entries = memory_allocate((size_t)size * sizeof *model->entries);
    for (int32_t i = 0; i < size; i++) {
        const char *word = cursor->bytes + cursor->at, *end = memchr(word, 0, cursor->size - cursor->at);
        int8_t type;
        if (!end) return false;
        cursor->at += (size_t)(end - word) + 1;
        model->entries[i].word = word;
        if (!read_bytes(cursor, &model->entries[i].count, 8) || !read_bytes(cursor, &type, 1)) return false;
        if (type != (i < words ? WORD : LABEL)) return false;
    }
    int64_t sum = 0; /* below the count of a node of the tree that is not made yet */
    for (int32_t i = words; i < size; i++) {
        int64_t count = model->entries[i].count;
        if (count < 0 || count >= MOST_COUNT || (sum += count) >= MOST_COUNT) return false;
    }
    index_words(model);
    return true;
}

static float load(const char *matrix, int64_t index) {
    float value;
    memcpy(&value, matrix + index * 4, sizeof value);
    return value;
}

/* Finds a matrix of finite fp32 numbers with rows of the model's width. */
static const char *read_matrix(const Fasttext *model, Cursor *cursor, int64_t *rows) {
    int64_t columns;
    if (!read_bytes(cursor, rows, 8) || !read_bytes(cursor, &columns, 8)) return NULL;
    if (columns != model->parameters.width || *rows < 0 || (uint64_t)*rows > (cursor->size - cursor->at) / 4 / (uint64_t)columns)
        return NULL;
    const char *matrix = cursor->bytes + cursor->at;
    for (int64_t i = 0; i < *rows * columns; i++)
        if (!isfinite(load(matrix, i))) return NULL;
    cursor->at += (size_t)*rows * (size_t)columns * 4;
    return matrix;
}

/* Makes the tree of labels as fastText does: the two rarest nodes get a parent, again and again.
 * Labels come with the most frequent first. */
static void make_tree(Fasttext *model) {
    int32_t labels = model->label_count, leaf = labels - 1, inner = labels;
    model->tree = memory_allocate((size_t)(2 * labels - 1) * sizeof *model->tree);
    for (int32_t i = 0; i < 2 * labels - 1; i++)
        model->tree[i] = (TreeNode){i < labels ? model->entries[model->word_count + i].count : MOST_COUNT, -1, -1};
    for (int32_t i = labels; i < 2 * labels - 1; i++) {
        int32_t rarest[2];
        for (int j = 0; j < 2; j++) rarest[j] = leaf >= 0 && model->tree[leaf].count < model->tree[inner].count ? leaf-- : inner++;
        model->tree[i] = (TreeNode){model->tree[rarest[0]].count + model->tree[rarest[1]].count, rarest[0], rarest[1]};
    }
}

static bool refuse_model(const char *path, const char *what, Error *error) { return error_set(error, ERROR_DATA, "%s %s", path, what); }

static bool read_model(Fasttext *model, const char *path, Error *error) {
    static const char damaged[] = "is damaged, or not a model of fastText: download or train it again";
    Cursor cursor = {(const char *)model->map.bytes, 0, model->map.size};
    FasttextParameters *own = &model->parameters;
    int32_t magic, version;
    int64_t labels;
    uint8_t compressed;
    if (!read_bytes(&cursor, &magic, 4) || !read_bytes(&cursor, &version, 4) || magic != MAGIC)
        return refuse_model(path, "is not a model of fastText: give a .bin file of fastText's supervised", error);
    if (version != VERSION)
        return refuse_model(path, "is a model of an old fastText: train it again with a version from 2017 or later", error);
    if (!read_bytes(&cursor, own, offsetof(FasttextParameters, sampling)) || !read_bytes(&cursor, &own->sampling, 8))
        return refuse_model(path, damaged, error);
    if (own->model != SUPERVISED) return refuse_model(path, "has word vectors but no labels: give a model of fastText's supervised", error);
    if (own->width < 1 || own->buckets < 0 || own->run_words < 1 || own->loss < LOSS_TREE || own->loss > LOSS_EACH)
        return refuse_model(path, damaged, error);
    if (!read_dictionary(model, &cursor) || !read_bytes(&cursor, &compressed, 1)) return refuse_model(path, damaged, error);
    if (compressed) return refuse_model(path, "is quantized (.ftz), which is not supported: give the .bin file", error);
    model->vectors = read_matrix(model, &cursor, &model->rows);
    if (!model->vectors || model->rows < (int64_t)model->word_count + own->buckets || !read_bytes(&cursor, &compressed, 1) || compressed)
        return refuse_model(path, damaged, error);
    model->matrix = read_matrix(model, &cursor, &labels);
    if (!model->matrix || labels != model->label_count) return refuse_model(path, damaged, error);
    if (own->loss == LOSS_TREE) make_tree(model);
    return true;
}

Fasttext *fasttext_open(const char *path, Error *error) {
    Fasttext *model = memory_allocate(sizeof *model);
    bool good = file_map(&model->map, path, error) || error_recode(error, ERROR_DATA);
    if (good && read_model(model, path, error)) return model;
    fasttext_free(model);
    return NULL;
}

void fasttext_free(Fasttext *model) {
    if (!model) return;
    file_unmap(&model->map);
    free(model->entries);
    free(model->slots);
    free(model->tree);
    free(model);
}

int32_t fasttext_labels(const Fasttext *model) { return model->label_count; }

const char *fasttext_label(const Fasttext *model, int32_t label) {
    const char *name = model->entries[model->word_count + label].word;
    return starts_with(name, label_prefix) ? name + strlen(label_prefix) : name;
}

int32_t fasttext_width(const Fasttext *model) { return model->parameters.width; }

uint64_t fasttext_identity(const Fasttext *model) { return XXH3_64bits(model->map.bytes, model->map.size); }

/* -- Scoring ------------------------------------------------------------------------------------------------------------- */

/* The sum of the vectors of a text so far. */
typedef struct VectorSum {
    const Fasttext *model;
    float *hidden;
    int64_t count;
} VectorSum;

static void add_vector(VectorSum *sum, int64_t row) {
    int64_t width = sum->model->parameters.width;
    for (int64_t i = 0; i < width; i++) sum->hidden[i] += load(sum->model->vectors, row * width + i);
    sum->count++;
}

static void add_bucket(VectorSum *sum, uint64_t hash) {
    const FasttextParameters *parameters = &sum->model->parameters;
    if (parameters->buckets > 0) add_vector(sum, sum->model->word_count + (int64_t)(hash % (uint64_t)parameters->buckets));
}

static bool continues(char byte) { return ((unsigned char)byte & 0xc0) == 0x80; }

/* Adds the parts of `<word>` of least_part to most_part characters, hashed. */
static void add_parts(VectorSum *sum, const char *word, size_t size) {
    const FasttextParameters *parameters = &sum->model->parameters;
    for (size_t start = 0; start < size + 2; start++) {
        uint32_t hash = HASH_START;
        /* The byte at a place of `<word>`. */
#define BYTE(at) ((at) == 0 ? '<' : (at) == size + 1 ? '>' : word[(at) - 1])
        if (continues(BYTE(start))) continue;
        for (size_t at = start, characters = 1; at < size + 2 && characters <= (size_t)parameters->most_part; characters++) {
            do {
                char byte = BYTE(at);
                hash = hash_bytes(hash, &byte, 1);
                at++;
            } while (at < size + 2 && continues(BYTE(at)));
#undef BYTE
            bool bracket = characters == 1 && (start == 0 || at == size + 2);
            if (characters >= (size_t)parameters->least_part && !bracket) add_bucket(sum, hash);
        }
    }
}

static bool is_end(const char *word, size_t size) { return size == strlen(end_word) && !memcmp(word, end_word, size); }

static bool is_label(const char *word, size_t size) {
    return size >= strlen(label_prefix) && !memcmp(word, label_prefix, strlen(label_prefix));
}

/* Adds a word and its parts. Returns the word's hash. */
static int32_t add_word(VectorSum *sum, const char *word, size_t size) {
    int32_t known = find_word(sum->model, word, size);
    if (known >= 0) add_vector(sum, known);
    if (!is_end(word, size) && sum->model->parameters.most_part > 0) add_parts(sum, word, size);
    return (int32_t)hash_bytes(HASH_START, word, size);
}

/* As predict, whose probabilities are 1e-5 too large. */
static float log_score(float probability) { return (float)log((double)probability + 1e-5); }

static float dot(const Fasttext *model, int64_t row, const float *hidden) {
    int64_t width = model->parameters.width;
    float sum = 0;
    for (int64_t i = 0; i < width; i++) sum += load(model->matrix, row * width + i) * hidden[i];
    return sum;
}

/* The probability of each leaf is the product of the branches to it. A child comes before its
 * parent, so one pass from the root down gives all. */
static void score_tree(const Fasttext *model, const float *hidden, float *scores) {
    int32_t labels = model->label_count, nodes = 2 * labels - 1;
    float *logs = memory_allocate((size_t)nodes * sizeof *logs);
    for (int32_t i = nodes - 1; i >= labels; i--) {
        float right = (float)(1 / (1 + exp(-(double)dot(model, i - labels, hidden))));
        logs[model->tree[i].left] = logs[i] + log_score(1 - right);
        logs[model->tree[i].right] = logs[i] + log_score(right);
    }
    for (int32_t i = 0; i < labels; i++) scores[i] = expf(logs[i]);
    free(logs);
}

static void score_softmax(const Fasttext *model, const float *hidden, float *scores) {
    float largest = 0, sum = 0;
    for (int32_t i = 0; i < model->label_count; i++) {
        scores[i] = dot(model, i, hidden);
        if (i == 0 || scores[i] > largest) largest = scores[i];
    }
    for (int32_t i = 0; i < model->label_count; i++) sum += scores[i] = expf(scores[i] - largest);
    for (int32_t i = 0; i < model->label_count; i++) scores[i] = expf(log_score(scores[i] / sum));
}

/* fastText's logistic function, a table of 512 steps. NaN, the difference of two sums that are too
 * large, stays NaN. */
static float step_logistic(float x) {
    if (isnan(x)) return x;
    if (x < -8 || x > 8) return x > 8;
    return 1 / (1 + expf(8 - (float)(int)((x + 8) * 32) / 32));
}

static void score_each(const Fasttext *model, const float *hidden, float *scores) {
    for (int32_t i = 0; i < model->label_count; i++) scores[i] = expf(log_score(step_logistic(dot(model, i, hidden))));
}

/* fastText's own spaces; its line ends are spaces here, as a document is one line. */
static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r') || c == 0; }

void fasttext_score(const Fasttext *model, const char *text, size_t size, float *hidden, float *scores) {
    VectorSum sum = {model, hidden, 0};
    int32_t *words = NULL; /* hashes of the words, for runs of them */
    size_t count = 0, capacity = 0;
    memset(hidden, 0, (size_t)model->parameters.width * sizeof *hidden);
    for (size_t at = 0, end; at <= size; at = end + 1) {
        for (end = at; end < size && !is_space(text[end]);) end++;
        if (is_end(text + at, end - at)) break; /* the rest is not read */
        if (end == at || is_label(text + at, end - at)) continue;
        array_reserve(words, capacity, count + 1);
        words[count++] = add_word(&sum, text + at, end - at);
    }
    array_reserve(words, capacity, count + 1);
    words[count++] = add_word(&sum, end_word, strlen(end_word));
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = (uint64_t)(int64_t)words[i];
        for (size_t j = i + 1; j < count && j < i + (size_t)model->parameters.run_words; j++) {
            hash = hash * 116049371u + (uint64_t)(int64_t)words[j];
            add_bucket(&sum, hash);
        }
    }
    free(words);
    memset(scores, 0, (size_t)model->label_count * sizeof *scores);
    if (sum.count == 0) return;
    for (int32_t i = 0; i < model->parameters.width; i++) hidden[i] *= (float)(1.0 / (double)sum.count);
    if (model->parameters.loss == LOSS_TREE) score_tree(model, hidden, scores);
    else if (model->parameters.loss == LOSS_EACH || model->parameters.loss == LOSS_SAMPLED) score_each(model, hidden, scores);
    else score_softmax(model, hidden, scores);
}
