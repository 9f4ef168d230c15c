// Package render turns what the engine reports into what people and scripts read: tables, JSON documents, JSON lines, a
// progress bar, and advice on what is safe to do next.
//
// The JSON documents are an interface that scripts rely on: each names its schema, and fields are only ever added. Every
// text that came from outside is made safe for a terminal on its way out, see [Clean]. Nothing here shows a password: targets
// are shown in the form that cannot hold one.
//
// The package opens no database and decides nothing: it knows the engine's results, not the storage behind them.
package render
