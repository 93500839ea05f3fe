"""The licence page of the bundled glyphs, made from the faces that drew them."""

from collections.abc import Iterable, Sequence

from tff_dpemb.data.sources.glyphs import faces as glyph_faces

FILE_NAME = 'LICENCES.md'

_HEAD = """\
# Licences of the bundled glyphs

`bundle.xz` holds black-and-white pictures of single characters, 40
pixels high, drawn with the faces below. It holds no font program: no outline,
table or name of a font can be taken from it. Only faces under the SIL Open
Font License 1.1, the Apache License 2.0, the IPA Font License 1.0, or an MIT-
or BSD-like licence were used. The Open Font License and the IPA licence
expressly do not extend to documents and digital contents made with the fonts.
The fonts are those of Debian 12; licence and copyright are quoted from each
package's `/usr/share/doc/PACKAGE/copyright`.

This page is written by `tff_dpemb.data.sources.glyphs.bundle_build`.
"""

_SETS = {'kanji': 'Kanji (private users)', 'hangul': 'Hangul (public users)'}

_TEXTS = """\
## Licence texts

- **OFL-1.1**: SIL Open Font License 1.1, https://openfontlicense.org. Reserved
  font names (among them Hanazono, YOzFont, Nanum, BM HANNA, BM JUA, BM
  DoHyeon, BM YEONSUNG, BM KIRANGHAERANG, BM EULJIRO, LXGW) name nothing here
  but the faces in the tables.
- **Apache-2.0**: https://www.apache.org/licenses/LICENSE-2.0
- **IPA-1.0**: IPA Font License 1.0, https://opensource.org/license/ipafont-html
- **Hanazono, Ume, M+** (MIT-like): "This font is a free software. Unlimited
  permission is granted to use, copy, and distribute it, with or without
  modification, either commercially and noncommercially. THIS FONT IS PROVIDED
  "AS IS" WITHOUT WARRANTY."
- **Sazanami** (part of VL Gothic): as the source (BSD); "there is no
  limitation [...] in order not to reuse as font (ex: font is embedded to
  documents)".

### MIT (Konatu, Copyright 2007-2012 Mitiya Masuda)

Permission is hereby granted, free of charge, to any person obtaining a copy of
this software and associated documentation files (the "Software"), to deal in
the Software without restriction, including without limitation the rights to
use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies
of the Software, and to permit persons to whom the Software is furnished to do
so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.

### Baekmuk (MIT-like, Copyright (c) 1986-2002 Kim Jeong-Hwan)

All rights reserved. Permission to use, copy, modify and distribute this font
is hereby granted, provided that both the copyright notice and this permission
notice appear in all copies of the font, derivative works or modified versions,
and that the following acknowledgement appear in supporting documentation:
Baekmuk Batang, Baekmuk Dotum, Baekmuk Gulim, and Baekmuk Headline are
registered trademarks owned by Kim Jeong-Hwan.

### BSD-3-Clause (kiloji, Copyright 2007 きろのの; VL Gothic, Copyright 1990-2003 Wada Laboratory, the University of Tokyo)

Redistribution and use in source and binary forms, with or without
modification, are permitted provided that the following conditions are met:

1. Redistributions of source code must retain the above copyright notice, this
   list of conditions and the following disclaimer.
2. Redistributions in binary form must reproduce the above copyright notice,
   this list of conditions and the following disclaimer in the documentation
   and/or other materials provided with the distribution.
3. Neither the name of the copyright holder (for VL Gothic: of the Wada
   Laboratory, the University of Tokyo) nor the names of its contributors may
   be used to endorse or promote products derived from this software without
   specific prior written permission.

THIS SOFTWARE IS PROVIDED BY THE COPYRIGHT HOLDERS AND CONTRIBUTORS "AS IS" AND
ANY EXPRESS OR IMPLIED WARRANTIES, INCLUDING, BUT NOT LIMITED TO, THE IMPLIED
WARRANTIES OF MERCHANTABILITY AND FITNESS FOR A PARTICULAR PURPOSE ARE
DISCLAIMED. IN NO EVENT SHALL THE COPYRIGHT OWNER OR CONTRIBUTORS BE LIABLE FOR
ANY DIRECT, INDIRECT, INCIDENTAL, SPECIAL, EXEMPLARY, OR CONSEQUENTIAL DAMAGES
(INCLUDING, BUT NOT LIMITED TO, PROCUREMENT OF SUBSTITUTE GOODS OR SERVICES;
LOSS OF USE, DATA, OR PROFITS; OR BUSINESS INTERRUPTION) HOWEVER CAUSED AND ON
ANY THEORY OF LIABILITY, WHETHER IN CONTRACT, STRICT LIABILITY, OR TORT
(INCLUDING NEGLIGENCE OR OTHERWISE) ARISING IN ANY WAY OUT OF THE USE OF THIS
SOFTWARE, EVEN IF ADVISED OF THE POSSIBILITY OF SUCH DAMAGE.
"""


def page(faces: Iterable[glyph_faces.Face]) -> str:
  """Returns the Markdown page that names each face, licence and owner."""
  faces = list(faces)
  parts = [_HEAD]
  for name, title in _SETS.items():
    rows = [face for face in faces if face.character_set == name]
    parts.append(f'## {title}: {len(rows)} faces\n\n{_table(rows)}')
  return '\n'.join([*parts, _TEXTS])


def _table(faces: Sequence[glyph_faces.Face]) -> str:
  lines = [
    '| face | Debian package | licence | copyright |',
    '|---|---|---|---|',
  ]
  lines += [
    f'| {face.name} | {face.package} | {face.licence} | {face.copyright} |'
    for face in faces
  ]
  return '\n'.join(lines) + '\n'
