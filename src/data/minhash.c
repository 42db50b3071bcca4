/* Keys for finding documents that share most of their text: MinHash over runs of five words, in
 * bands (Broder, "On the resemblance and containment of documents", 1997; Leskovec et al., "Mining
 * of Massive Datasets", section 3.4). Two documents whose sets of runs have the Jaccard similarity
 * s share a key with probability 1 - (1 - s^8)^14: 0.05 at 0.5, 0.92 at 0.8, 0.9996 at 0.9. A word
 * is a run of letters and digits, ignoring case. Bytes above ASCII count as letters, so a text
 * without spaces between words is one word, and only identical text matches it. */
#include <string.h>

#include <xxhash.h>

#include "base/rng.h"
#include "data/pack_internal.h"

enum { ROWS = 8, MINIMA = MINHASH_KEYS * ROWS, SHINGLE = 5 };

/* Makes random functions of a 64-bit hash: low * factor + high, modulo 2^32. */
static void make_factors(uint32_t factors[MINIMA]) {
    for (uint32_t i = 0; i < MINIMA; i++) factors[i] = rng_bits(i / 4, 5, i / 4).word[i % 4] | 1;
}

static void take_shingle(uint32_t minima[MINIMA], const uint32_t factors[MINIMA], const uint64_t *words, size_t count) {
    uint64_t hash = XXH3_64bits(words, count * sizeof *words);
    uint32_t low = (uint32_t)hash, high = (uint32_t)(hash >> 32);
#pragma omp simd
    for (int i = 0; i < MINIMA; i++) {
        uint32_t value = low * factors[i] + high;
        minima[i] = value < minima[i] ? value : minima[i];
    }
}

/* Returns a byte of a word in lower case; 0 between words. */
static unsigned char word_byte(unsigned char byte) {
    if (byte >= 'A' && byte <= 'Z') return (unsigned char)(byte + ('a' - 'A'));
    return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte >= 0x80 ? byte : 0;
}

void minhash(const char *text, size_t size, uint64_t keys[MINHASH_KEYS]) {
    uint32_t minima[MINIMA], factors[MINIMA];
    uint64_t words[SHINGLE] = {0}, word = 0;
    size_t count = 0;
    make_factors(factors);
    memset(minima, 0xff, sizeof minima);
    for (size_t i = 0; i <= size; i++) {
        unsigned char byte = i < size ? word_byte((unsigned char)text[i]) : 0;
        if (byte) word = (word ^ byte) * 0x9e3779b97f4a7c15u;
        if (byte || !word) continue;
        memmove(words, words + 1, (SHINGLE - 1) * sizeof *words);
        words[SHINGLE - 1] = word;
        word = 0;
        if (++count >= SHINGLE) take_shingle(minima, factors, words, SHINGLE);
    }
    if (count < SHINGLE) take_shingle(minima, factors, words, SHINGLE);
    for (int i = 0; i < MINHASH_KEYS; i++)
        keys[i] = XXH3_64bits_withSeed(minima + (size_t)i * ROWS, ROWS * sizeof *minima, (uint64_t)i + 1);
}
