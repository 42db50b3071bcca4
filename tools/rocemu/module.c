/* Code objects: an ELF file with loadable segments, a 64-byte descriptor per kernel (symbol NAME.kd) and a
 * MessagePack note with what the launcher must know. Everything in the file is taken as possibly damaged: no offset
 * is followed before it is checked. A program owns its copy of the file, its loaded image and its decoded
 * instructions. */
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"

enum { ELF_MACHINE_AMDGPU = 224, MACHINE_MASK = 0xff, NOTE_METADATA = 32, MAX_OBJECT = 1 << 30 };

/* -- MessagePack --------------------------------------------------------------------------------------------------- */

typedef struct Reader {
    const uint8_t *at, *end;
    bool failed;
    int depth;
} Reader;

static uint64_t read_big_endian(Reader *reader, int bytes) {
    uint64_t value = 0;
    if (reader->end - reader->at < bytes) {
        reader->failed = true;
        return 0;
    }
    for (int i = 0; i < bytes; i++) value = value << 8 | *reader->at++;
    return value;
}

typedef enum ItemKind { ITEM_NUMBER, ITEM_STRING, ITEM_ARRAY, ITEM_MAP, ITEM_OTHER } ItemKind;
typedef struct Item {
    ItemKind kind;
    uint64_t number;
    const char *text;
} Item; /* number: value, length or count */

/* The head of the next item; strings are passed whole. */
static Item read_item(Reader *reader) {
    uint8_t tag = (uint8_t)read_big_endian(reader, 1);
    Item item = {ITEM_OTHER, 0, ""};
    if (tag < 0x80) item = (Item){ITEM_NUMBER, tag, ""};
    else if (tag < 0x90) item = (Item){ITEM_MAP, tag & 15, ""};
    else if (tag < 0xa0) item = (Item){ITEM_ARRAY, tag & 15, ""};
    else if (tag < 0xc0) item = (Item){ITEM_STRING, tag & 31, ""};
    else if (tag >= 0xcc && tag <= 0xcf) item = (Item){ITEM_NUMBER, read_big_endian(reader, 1 << (tag - 0xcc)), ""};
    else if (tag >= 0xd0 && tag <= 0xd3) item = (Item){ITEM_NUMBER, read_big_endian(reader, 1 << (tag - 0xd0)), ""};
    else if (tag >= 0xd9 && tag <= 0xdb) item = (Item){ITEM_STRING, read_big_endian(reader, 1 << (tag - 0xd9)), ""};
    else if (tag == 0xdc || tag == 0xdd) item = (Item){ITEM_ARRAY, read_big_endian(reader, tag == 0xdc ? 2 : 4), ""};
    else if (tag == 0xde || tag == 0xdf) item = (Item){ITEM_MAP, read_big_endian(reader, tag == 0xde ? 2 : 4), ""};
    else if (tag >= 0xe0) item = (Item){ITEM_NUMBER, (uint64_t)(int8_t)tag, ""};
    else if (tag != 0xc0 && tag != 0xc2 && tag != 0xc3) reader->failed = true;
    if (item.kind == ITEM_STRING) {
        if (item.number > (uint64_t)(reader->end - reader->at)) {
            reader->failed = true;
            item.number = 0;
        }
        item.text = (const char *)reader->at;
        reader->at += item.number;
    }
    return item;
}

static void skip_item(Reader *reader) {
    Item item = read_item(reader);
    if (item.kind != ITEM_ARRAY && item.kind != ITEM_MAP) return;
    if (++reader->depth > 32) reader->failed = true;
    for (uint64_t i = 0; i < item.number * (item.kind == ITEM_MAP ? 2 : 1) && !reader->failed; i++) skip_item(reader);
    reader->depth--;
}

static bool text_is(Item item, const char *text) {
    return item.kind == ITEM_STRING && item.number == strlen(text) && !memcmp(item.text, text, item.number);
}

/* Positions the reader at the value of `key` in the map that starts at it. */
static bool find_key(Reader *reader, const char *key) {
    Item map = read_item(reader);
    for (uint64_t i = 0; map.kind == ITEM_MAP && i < map.number && !reader->failed; i++) {
        if (text_is(read_item(reader), key)) return !reader->failed;
        skip_item(reader);
    }
    return false;
}

static uint64_t number_at(Reader reader, const char *key) {
    if (!find_key(&reader, key)) return 0;
    Item item = read_item(&reader);
    return item.kind == ITEM_NUMBER && !reader.failed ? item.number : 0;
}
static Item text_at(Reader reader, const char *key) {
    if (!find_key(&reader, key)) return (Item){ITEM_OTHER, 0, ""};
    return read_item(&reader);
}

/* -- Metadata ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    uint8_t kind;
} hidden_names[] = {{"hidden_block_count_x", HIDDEN_BLOCK_COUNT}, {"hidden_block_count_y", HIDDEN_BLOCK_COUNT + 1},
    {"hidden_block_count_z", HIDDEN_BLOCK_COUNT + 2}, {"hidden_group_size_x", HIDDEN_GROUP_SIZE},
    {"hidden_group_size_y", HIDDEN_GROUP_SIZE + 1}, {"hidden_group_size_z", HIDDEN_GROUP_SIZE + 2},
    {"hidden_remainder_x", HIDDEN_REMAINDER}, {"hidden_remainder_y", HIDDEN_REMAINDER + 1}, {"hidden_remainder_z", HIDDEN_REMAINDER + 2},
    {"hidden_grid_dims", HIDDEN_GRID_DIMS}, {"hidden_shared_base", HIDDEN_SHARED_BASE}, {"hidden_private_base", HIDDEN_PRIVATE_BASE}};

static bool read_argument(Kernel *kernel, Reader argument) {
    uint64_t offset = number_at(argument, ".offset"), size = number_at(argument, ".size");
    Item kind = text_at(argument, ".value_kind");
    if (offset > kernel->kernarg_bytes || size > kernel->kernarg_bytes - offset) return false;
    if (kind.kind == ITEM_STRING && kind.number > 7 && !memcmp(kind.text, "hidden_", 7)) {
        for (size_t i = 0; i < sizeof hidden_names / sizeof *hidden_names; i++)
            if (text_is(kind, hidden_names[i].name) && size <= 8 && kernel->hidden_arguments < MAX_HIDDEN)
                kernel->hidden[kernel->hidden_arguments++] = (HiddenArgument){hidden_names[i].kind, (uint16_t)offset, (uint16_t)size};
        return true;
    }
    if (kernel->arguments == MAX_ARGUMENTS) return false;
    kernel->argument[kernel->arguments].offset = (uint32_t)offset;
    kernel->argument[kernel->arguments++].size = (uint32_t)size;
    return true;
}

static bool read_kernel(Kernel *kernel, Reader map) {
    kernel->kernarg_bytes = (uint32_t)number_at(map, ".kernarg_segment_size");
    kernel->group_bytes = (uint32_t)number_at(map, ".group_segment_fixed_size");
    kernel->private_bytes = (uint32_t)number_at(map, ".private_segment_fixed_size");
    kernel->vector_registers = (uint32_t)number_at(map, ".vgpr_count");
    kernel->accumulators = (uint32_t)number_at(map, ".agpr_count");
    kernel->max_threads = (uint32_t)number_at(map, ".max_flat_workgroup_size");
    if (kernel->kernarg_bytes > 65536 || kernel->group_bytes > kernel->program->architecture->lds_bytes || kernel->private_bytes > 1 << 20)
        return false;
    Reader arguments = map;
    if (!find_key(&arguments, ".args")) return true;
    Item list = read_item(&arguments);
    for (uint64_t i = 0; list.kind == ITEM_ARRAY && i < list.number && !arguments.failed; i++) {
        if (!read_argument(kernel, arguments)) return false;
        skip_item(&arguments);
    }
    return !arguments.failed;
}

/* Finds the kernel's map in the note's list. */
static bool read_metadata(Kernel *kernel, const uint8_t *note, size_t bytes) {
    Reader reader = {note, note + bytes, false, 0};
    if (!find_key(&reader, "amdhsa.kernels")) return false;
    Item list = read_item(&reader);
    for (uint64_t i = 0; list.kind == ITEM_ARRAY && i < list.number && !reader.failed; i++) {
        if (text_is(text_at(reader, ".name"), kernel->name)) return read_kernel(kernel, reader);
        skip_item(&reader);
    }
    return false;
}

/* -- ELF ----------------------------------------------------------------------------------------------------------- */

/* Size of an ELF file from its own headers, before it is trusted: the end of the section table, which is last in the
 * file. */
static size_t object_size(const Elf64_Ehdr *header) { return (size_t)header->e_shoff + (size_t)header->e_shentsize * header->e_shnum; }

static bool inside(const Program *program, uint64_t offset, uint64_t bytes) {
    return offset <= program->object_bytes && bytes <= program->object_bytes - offset;
}

static const Elf64_Shdr *section(const Program *program, unsigned i) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)program->object;
    return i < header->e_shnum ? (const Elf64_Shdr *)(program->object + header->e_shoff) + i : NULL;
}

/* The dynamic symbol of that name, or NULL. */
static const Elf64_Sym *find_symbol(const Program *program, const char *name) {
    const Elf64_Shdr *table;
    for (unsigned i = 0; (table = section(program, i)); i++) {
        const Elf64_Shdr *strings = section(program, table->sh_link);
        if (table->sh_type != SHT_DYNSYM || !strings || !inside(program, table->sh_offset, table->sh_size) ||
            !inside(program, strings->sh_offset, strings->sh_size))
            continue;
        const Elf64_Sym *symbol = (const Elf64_Sym *)(program->object + table->sh_offset);
        for (uint64_t s = 0; s < table->sh_size / sizeof *symbol; s++) {
            uint64_t room = symbol[s].st_name < strings->sh_size ? strings->sh_size - symbol[s].st_name : 0;
            const char *text = program->object + strings->sh_offset + symbol[s].st_name;
            if (strnlen(text, room) < room && !strcmp(text, name)) return &symbol[s];
        }
    }
    return NULL;
}

static const uint8_t *find_note(const Program *program, size_t *bytes) {
    const Elf64_Shdr *notes;
    for (unsigned i = 0; (notes = section(program, i)); i++) {
        if (notes->sh_type != SHT_NOTE || !inside(program, notes->sh_offset, notes->sh_size)) continue;
        for (uint64_t at = 0; at + sizeof(Elf64_Nhdr) <= notes->sh_size;) {
            const Elf64_Nhdr *note = (const Elf64_Nhdr *)(program->object + notes->sh_offset + at);
            uint64_t name = at + sizeof *note, description = name + ((uint64_t)note->n_namesz + 3) / 4 * 4,
                     next = description + ((uint64_t)note->n_descsz + 3) / 4 * 4;
            if (description + note->n_descsz > notes->sh_size) break;
            if (note->n_type == NOTE_METADATA) {
                *bytes = note->n_descsz;
                return (const uint8_t *)program->object + notes->sh_offset + description;
            }
            at = next;
        }
    }
    return NULL;
}

static bool check_header(Program *program, const Elf64_Ehdr *header, char why[256]) {
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != ELF_MACHINE_AMDGPU) {
        snprintf(why, 256, "not an AMDGPU code object (an ELF file of 64 bits for machine %d)", ELF_MACHINE_AMDGPU);
        return false;
    }
    unsigned machine = header->e_flags & MACHINE_MASK;
    program->architecture = architecture_of_machine(machine);
    if (!program->architecture) {
        snprintf(why, 256, "a code object for another GPU (machine 0x%x); gfx942, gfx90a and gfx950 are emulated", machine);
        return false;
    }
    if (header->e_shentsize != sizeof(Elf64_Shdr) || header->e_phentsize != sizeof(Elf64_Phdr) || header->e_shoff % 8 ||
        header->e_shoff > MAX_OBJECT) {
        snprintf(why, 256, "a damaged code object: its tables are not where they can be");
        return false;
    }
    return true;
}

static bool load_segments(Program *program, char why[256]) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)program->object;
    if (!inside(program, header->e_phoff, (uint64_t)header->e_phnum * sizeof(Elf64_Phdr)) || header->e_phoff % 8) {
        snprintf(why, 256, "a damaged code object: the program headers are outside the file");
        return false;
    }
    const Elf64_Phdr *segment = (const Elf64_Phdr *)(program->object + header->e_phoff);
    for (int i = 0; i < header->e_phnum; i++) {
        if (segment[i].p_type != PT_LOAD) continue;
        if (!inside(program, segment[i].p_offset, segment[i].p_filesz) || segment[i].p_filesz > segment[i].p_memsz ||
            segment[i].p_memsz > MAX_OBJECT || segment[i].p_vaddr > MAX_OBJECT) {
            snprintf(why, 256, "a damaged code object: segment %d does not fit", i);
            return false;
        }
        uint64_t end = segment[i].p_vaddr + segment[i].p_memsz;
        program->image_bytes = end > program->image_bytes ? end : program->image_bytes;
        if (segment[i].p_flags & PF_X) {
            program->text_address = (uint32_t)segment[i].p_vaddr & ~3u;
            program->text_bytes = (uint32_t)(end - program->text_address) & ~3u;
        }
    }
    program->image = (uint8_t *)arena_allocate(program->image_bytes, false);
    program->instruction = calloc(program->text_bytes / 4 + 1, sizeof *program->instruction);
    if (!program->image || !program->instruction || !program->text_bytes) {
        snprintf(why, 256, "no code, or no memory for %llu bytes of it", (unsigned long long)program->image_bytes);
        return false;
    }
    for (int i = 0; i < header->e_phnum; i++)
        if (segment[i].p_type == PT_LOAD)
            memcpy(program->image + segment[i].p_vaddr, program->object + segment[i].p_offset, segment[i].p_filesz);
    return true;
}

Program *program_load(const void *image, char why[256]) {
    const Elf64_Ehdr *header = image;
    Program *program = calloc(1, sizeof *program);
    if (!program || !check_header(program, header, why)) {
        free(program);
        return NULL;
    }
    program->object_bytes = object_size(header);
    program->object = malloc(program->object_bytes);
    if (program->object) {
        memcpy(program->object, image, program->object_bytes);
        program->checksum = ledger_checksum(program->object, program->object_bytes);
    }
    if (!program->object || !load_segments(program, why)) {
        program_unload(program);
        return NULL;
    }
    return program;
}

void program_unload(Program *program) {
    if (!program) return;
    for (uint32_t i = 0; program->instruction && i < program->text_bytes / 4; i++) free((char *)program->instruction[i].text);
    free(program->instruction);
    if (program->image) arena_free((uint64_t)program->image, false);
    free(program->object);
    free(program);
}

/* -- Kernels ------------------------------------------------------------------------------------------------------- */

/* Whether the kernel's code calls functions, or branches to what is not its own. Few do, and to decode takes long. */
static bool leaves_kernel(const Kernel *kernel) {
    int32_t first = (int32_t)((kernel->entry - kernel->program->text_address) / 4), end = first + (int32_t)(kernel->code_bytes / 4);
    for (int32_t slot = first; slot < end; slot++) {
        const Instruction *in = &kernel->program->instruction[slot];
        uint32_t flags = in->operation ? in->operation->flags : 0;
        if (flags & OPERATION_CALLS || (flags & OPERATION_BRANCHES && (in->target < first || in->target >= end))) return true;
    }
    return false;
}

bool program_kernel(Program *program, const char *name, Kernel *kernel, char why[256]) {
    *kernel = (Kernel){.program = program};
    char descriptor_name[KERNEL_NAME + 4];
    if (snprintf(kernel->name, sizeof kernel->name, "%s", name) >= (int)sizeof kernel->name)
        return snprintf(why, 256, "a kernel's name is too long"), false;
    snprintf(descriptor_name, sizeof descriptor_name, "%s.kd", name);
    const Elf64_Sym *symbol = find_symbol(program, descriptor_name), *code = find_symbol(program, name);
    size_t note_bytes = 0;
    const uint8_t *note = find_note(program, &note_bytes);
    if (!symbol || !code || symbol->st_value > program->image_bytes - 64 || program->image_bytes < 64)
        return snprintf(why, 256, "no kernel %.128s in the code object", name), false;
    if (!note || !read_metadata(kernel, note, note_bytes))
        return snprintf(why, 256, "kernel %.128s has no metadata, or it is damaged", name), false;
    const uint8_t *descriptor = program->image + symbol->st_value;
    int64_t entry_offset;
    memcpy(&entry_offset, descriptor + 16, sizeof entry_offset);
    memcpy(&kernel->rsrc3, descriptor + 44, 4);
    memcpy(&kernel->rsrc1, descriptor + 48, 4);
    memcpy(&kernel->rsrc2, descriptor + 52, 4);
    memcpy(&kernel->properties, descriptor + 56, 2);
    memcpy(&kernel->preload, descriptor + 58, 2);
    uint64_t entry = symbol->st_value + (uint64_t)entry_offset;
    kernel->code_bytes = (uint32_t)code->st_size & ~3u;
    if (entry % 4 || entry < program->text_address || entry + kernel->code_bytes > (uint64_t)program->text_address + program->text_bytes)
        return snprintf(why, 256, "kernel %.128s begins outside the code", name), false;
    kernel->entry = (uint32_t)entry;
    if (!decode_program(program, kernel->entry, kernel->code_bytes, why)) return false;
    return !leaves_kernel(kernel) || decode_program(program, program->text_address, program->text_bytes, why);
}
