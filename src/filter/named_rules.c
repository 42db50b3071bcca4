/* The published rules for text from the web, by name. Each is an expression of filters, so that
 * another threshold is a `where=` with the same words.
 *
 * gopher: Rae et al., "Scaling Language Models: Methods, Analysis & Insights from Training Gopher",
 * 2021, section A.1.1 and table A1. c4: Raffel et al., "Exploring the Limits of Transfer Learning
 * with a Unified Text-to-Text Transformer", 2020, section 2.2: what it asks of pages; its rules for
 * lines are in lines.c. fineweb: Penedo et al., "The FineWeb Datasets", 2024,
 * section 3.6. */
#include "filter/filter_internal.h"

const NamedRule named_rules[] = {
    {"gopher", "gopher.words", "text.words >= 50 and text.words <= 100000"},
    {"gopher", "gopher.word_length", "text.word_length >= 3 and text.word_length <= 10"},
    {"gopher", "gopher.hashes", "text.hashes <= 0.1"},
    {"gopher", "gopher.ellipses", "text.ellipses <= 0.1"},
    {"gopher", "gopher.bullet_lines", "text.bullet_lines <= 0.9"},
    {"gopher", "gopher.ellipsis_lines", "text.ellipsis_lines <= 0.3"},
    {"gopher", "gopher.letters", "text.letter_words >= 0.8"},
    {"gopher", "gopher.stop_words", "text.stop_words >= 2"},
    {"gopher", "gopher.repeated_lines", "text.repeated_lines <= 0.3 and text.repeated_line_characters <= 0.2"},
    {"gopher", "gopher.repeated_paragraphs", "text.repeated_paragraphs <= 0.3 and text.repeated_paragraph_characters <= 0.2"},
    {"gopher", "gopher.top_2_words", "text.top_2_words <= 0.2"},
    {"gopher", "gopher.top_3_words", "text.top_3_words <= 0.18"},
    {"gopher", "gopher.top_4_words", "text.top_4_words <= 0.16"},
    {"gopher", "gopher.repeated_5_words", "text.repeated_5_words <= 0.15"},
    {"gopher", "gopher.repeated_6_words", "text.repeated_6_words <= 0.14"},
    {"gopher", "gopher.repeated_7_words", "text.repeated_7_words <= 0.13"},
    {"gopher", "gopher.repeated_8_words", "text.repeated_8_words <= 0.12"},
    {"gopher", "gopher.repeated_9_words", "text.repeated_9_words <= 0.11"},
    {"gopher", "gopher.repeated_10_words", "text.repeated_10_words <= 0.1"},
    {"c4", "c4.lorem_ipsum", "text.lorem_ipsum == 0"},
    {"c4", "c4.braces", "text.braces == 0"},
    {"c4", "c4.sentences", "text.sentences >= 5"},
    {"fineweb", "fineweb.closed_lines", "text.closed_lines >= 0.12"},
    {"fineweb", "fineweb.short_lines", "text.short_lines <= 0.67"},
    {"fineweb", "fineweb.repeated_line_characters", "text.repeated_line_characters <= 0.1"},
};
const int named_rule_count = sizeof named_rules / sizeof *named_rules;
