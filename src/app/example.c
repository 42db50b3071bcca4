/* Example configurations: `smelt train --example llama`, and the script that encodes images. They
 * are files of configs/ and tools/, embedded in the program, because an installation may lack these
 * folders. */
#include <stdio.h>
#include <string.h>

#include "app/command.h"

#define EXAMPLE(symbol, name, file) \
    __asm__(".section .rodata\nexample_" #symbol ":\n.incbin \"" file "\"\n.byte 0\n.text\n"); \
    extern const char example_##symbol[];
#include "app/example_list.h"
#undef EXAMPLE

bool example_print(const char *name, Error *error) {
    static const struct {
        const char *name, *text;
    } examples[] = {
#define EXAMPLE(symbol, name, file) {name, example_##symbol},
#include "app/example_list.h"
#undef EXAMPLE
    };
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
        if (!strcmp(examples[i].name, name)) return fputs(examples[i].text, stdout), true;
#define EXAMPLE(symbol, name, file) " " name
    static const char names[] =
#include "app/example_list.h"
        ;
    return error_set(error, ERROR_USAGE, "'%s' is not an example: use one of%s, as in smelt train --example llama", name, names);
}
